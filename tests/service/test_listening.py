"""A listening socket before it closes: connections that have begun can be accepted, and no other begins."""

import select
import socket

from packbert.service.address import begin_no_connection


def connects(client: socket.socket, address: tuple[str, int]) -> bool:
    """Whether the handshake completes; on the loopback interface it does so at once or not at all."""
    client.setblocking(False)
    client.connect_ex(address)
    return bool(select.select([], [client], [], 0)[1])


def test_no_connection_begins_any_more_and_those_that_have_begun_are_accepted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as early, socket.socket() as late:
        listener.setblocking(False)
        assert connects(early, listener.getsockname())
        begin_no_connection(listener)
        assert not connects(late, listener.getsockname())
        accepted, _ = listener.accept()
        with accepted:
            early.send(b"x")
            assert accepted.recv(1) == b"x"
