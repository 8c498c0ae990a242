"""The addresses of a service: listening sockets, and the message to a service manager."""

import asyncio
import ctypes
import logging
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

BACKLOG = 2048  # connections that wait in the system to be accepted
SO_ATTACH_FILTER = 26  # of Linux; the socket module does not have it
# load the flags of the TCP header; drop a segment that has SYN; pass all others (code, jump if true, jump if false, k)
DROP_SYN = ((0x30, 0, 0, 13), (0x45, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
INTERVAL_SECONDS = 0.2  # between two looks at the readiness
log = logging.getLogger("service")


class ListenError(Exception):
    """The address cannot be listened on; the message names it and the settings, of which `variable` is the port's."""

    def __init__(self, host: str, port: int, variable: str, error: OSError) -> None:
        super().__init__(f"cannot listen on {host}:{port} (BERT_HOST, {variable}): {error}")


def bind_address(host: str, port: int, variable: str) -> list[socket.socket]:
    """Sockets that are bound and do not listen yet, one for each address of `host`; `port` 0 is any free port.

    Raises ListenError if the port is taken, or the address is none of this machine's; it names `variable`.
    """
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            bound.append(socket.socket(family, kind, protocol))
            bound[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server: closed ones do not count
            if family == socket.AF_INET6:
                bound[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound[-1].bind(address)
    except OSError as error:
        for each in bound:
            each.close()
        raise ListenError(host, port, variable, error) from None
    return bound


def begin_no_connection(listener: socket.socket) -> None:
    """From now on no connection begins on the listening socket.

    Those that are established or in the handshake can still be accepted. When a listening socket closes, the system
    resets the connections that are not accepted yet; with this filter there are none, some turns of the loop later. A
    client that connects meanwhile sends its SYN again after a second, to what listens then. Does nothing if the system
    has no such filter.
    """
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in DROP_SYN))
    with suppress(OSError):
        content = struct.pack("HP", len(DROP_SYN), ctypes.addressof(program))
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, content)


async def wait_until_ready(ready: Callable[[], str]) -> None:
    """Returns when `ready` gives no reason against it."""
    while ready():  # noqa: ASYNC110 - readiness is asked for
        await asyncio.sleep(INTERVAL_SECONDS)


def notify(address: str) -> None:
    """Sends READY=1 to the datagram socket `address`, where a service manager waits.

    A leading @ stands for the zero byte of an abstract socket. Logs a warning if the socket cannot be reached.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.connect("\0" + address[1:] if address.startswith("@") else address)
            sender.send(b"READY=1")
    except OSError as error:
        log.warning(
            "NOTIFY_SOCKET is %s, which cannot be reached (%s): the service manager waits in vain", address, error
        )
