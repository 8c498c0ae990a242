"""A client of the service for programs (`Client`) and files (`bert-client`). It imports only `service.bulk`."""

from service.bulk.tasks import RequestFailed
from service.client.client import Client

__all__ = ["Client", "RequestFailed"]
