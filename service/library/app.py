"""All routes of the service over an engine that is open, for a server of one's own."""

from starlette.types import ASGIApp

from packbert.service.http.app import create_app
from packbert.service.http.body import start_thread
from packbert.service.library.engine import Engine


def make_app(engine: Engine) -> ASGIApp:
    """An ASGI application. It neither opens nor closes the engine, and its server has to run on the engine's loop.

    The limits of connections, headers and slow clients are the server's. Raises Unavailable while the engine is not
    open.
    """
    start_thread()
    return create_app(engine.backend)
