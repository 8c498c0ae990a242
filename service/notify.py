"""Says to a service manager (systemd's `Type=notify`) that the service is ready: sd_notify(3), one datagram.

Knows the socket of NOTIFY_SOCKET, not the manager behind it.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

INTERVAL_SECONDS = 0.2
log = logging.getLogger("service")


async def notify_when_ready(address: str, ready: Callable[[], Awaitable[str]]) -> None:
    """Sends READY=1 to the datagram socket `address` once `ready` returns no reason against it.

    A leading @ stands for the zero byte of an abstract socket. Logs a warning where the socket cannot be reached.
    """
    while await ready():  # noqa: ASYNC110 - readiness is asked for, also of the engine process
        await asyncio.sleep(INTERVAL_SECONDS)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.connect("\0" + address[1:] if address.startswith("@") else address)
            sender.send(b"READY=1")
    except OSError as error:
        log.warning(
            "NOTIFY_SOCKET is %s, which cannot be reached (%s): the service manager waits in vain", address, error
        )
