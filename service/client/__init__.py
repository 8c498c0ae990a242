"""A client of the service for programs (`Client`) and files (`bert-client`). Imports nothing else of the service."""

from service.client.client import Client
from service.client.sender import RequestFailed

__all__ = ["Client", "RequestFailed"]
