"""All routes of the service over an engine that is open, for a server of your own."""

import weakref

from starlette.types import ASGIApp

from ..http.app import create_app
from ..http.body import start_thread
from ..http.headers import ApiKeys
from .engine import Engine


def make_app(engine: Engine) -> ASGIApp:
    """An ASGI application. It neither opens nor closes the engine, and its server has to run on the engine's loop.

    The limits of connections, headers and slow clients are the server's. Raises Unavailable while the engine is not
    open.
    """
    start_thread()
    keys = ApiKeys(engine.models.settings)
    app = create_app(engine.models, keys)
    keys.open()
    weakref.finalize(app, keys.close)  # an application that is mounted in another hears of no end
    return app
