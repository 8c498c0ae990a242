"""Listening sockets before they close, and the message to a service manager when the service is ready."""

import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness.process import ServiceProcess
from packbert.service.address import begin_no_connection, notify, wait_until_ready
from tests.service.fakes import play


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


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(60)
        yield receiver


def received(receiver: socket.socket) -> bytes:
    """What is there now; empty without a message."""
    receiver.setblocking(False)
    try:
        return receiver.recv(100)
    except BlockingIOError:
        return b""


def test_the_message_is_sent_once_nothing_speaks_against_it(manager: socket.socket) -> None:
    reasons = ["loading", "loading", ""]
    seen = []

    def ready() -> str:
        seen.append(received(manager))
        return reasons.pop(0)

    play(lambda time: wait_until_ready(ready))
    notify(manager.getsockname())
    assert seen == [b""] * 3
    assert received(manager) == b"READY=1"
    assert received(manager) == b""


def test_an_abstract_socket_begins_with_an_at_sign() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("")  # the kernel chooses an abstract name
        notify("@" + receiver.getsockname()[1:].decode())
        assert received(receiver) == b"READY=1"


def test_a_manager_that_is_gone_stops_no_service(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notify(str(tmp_path / "gone"))
    (line,) = caplog.messages
    assert line.startswith(f"NOTIFY_SOCKET is {tmp_path / 'gone'}, which cannot be reached ([Errno 2]")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_started_service_notifies(workers: str, bert_artifact: Path, manager: socket.socket) -> None:
    settings = {"BERT_MODEL": str(bert_artifact), "BERT_WORKERS": workers}
    with ServiceProcess(settings | {"NOTIFY_SOCKET": manager.getsockname()}):
        assert manager.recv(100) == b"READY=1"
