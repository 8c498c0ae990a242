"""Sends the requests of a service: to a process of any checkout, or to this checkout's application in this process."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path

import httpx

from benchmarks.harness.process import ServiceProcess, free_port
from packbert import Engine, Settings, make_app
from tests.contract.answers import Answer
from tests.contract.request import Request, to_bytes
from tests.contract.services import KEY_FILE_CONTENT, Service
from tests.paths import GOLDEN, SAMPLE

TIMEOUT_SECONDS = 30
PORT, ADMIN_PORT = 8080, 9000  # of an application without a socket
Answers = dict[str, tuple[Request, Answer]]  # by the name of the service and of the request


def checkpoint(service: Service, folder: Path) -> Path:
    """The checkpoint of a service; one of several folders is put together in `folder`."""
    if not service.folders:
        return SAMPLE
    if len(service.folders) == 1:
        return GOLDEN / service.folders[0]
    made = folder / service.name
    for one in service.folders:
        shutil.copytree(GOLDEN / one, made, dirs_exist_ok=True)
    return made


def ask_all(services: Iterable[Service], checkout: Path, folder: Path) -> Answers:
    """The answers of services of a checkout, each a process of its own; `folder` gets their artifacts."""
    found: Answers = {}
    for service in services:
        source = checkpoint(service, folder / "checkpoints")
        artifact = folder / "artifacts" / source.name
        if not artifact.exists():
            command = [sys.executable, "-m", "packbert.model_export", str(source), str(artifact)]
            exported = subprocess.run(command, env=os.environ | _paths(checkout), capture_output=True, text=True)
            assert exported.returncode == 0, exported.stderr
        found |= ask_process(service, artifact, folder, checkout)
    return found


def ask_process(service: Service, artifact: Path, folder: Path, checkout: Path) -> Answers:
    with _running(service, artifact, folder, checkout) as (port, admin_port):
        return {
            f"{service.name}: {request.name}": (request, send(request, admin_port if request.admin else port))
            for request in service.requests
        }


@contextmanager
def _running(service: Service, artifact: Path, folder: Path, checkout: Path) -> Iterator[tuple[int, int]]:
    settings, admin_port = {"BERT_MODEL": str(artifact), **service.settings}, 0
    if service.has_admin_port:
        admin_port = free_port()
        settings["BERT_ADMIN_PORT"] = str(admin_port)
    if service.has_key_file:
        keys = folder / "keys"
        keys.write_text(KEY_FILE_CONTENT)
        settings["BERT_API_KEY_FILE"] = str(keys)
    with ServiceProcess(settings | _paths(checkout)) as process:
        assert process.process.poll() is None, process.output()
        yield process.port, admin_port


def _paths(checkout: Path) -> dict[str, str]:
    """Variables that make a Python process import from `checkout`, wherever it is started."""
    return {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}


def send(request: Request, port: int) -> Answer:
    """The answer over a connection of its own. Bytes after its end are put after its body."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS) as connection:
        connection.sendall(to_bytes(request))
        if request.raw is not None:
            return Answer(0, [], _read_to_end(connection))
        response = HTTPResponse(connection, method=request.method)
        response.begin()
        body = response.read()
        connection.shutdown(socket.SHUT_WR)
        return Answer(response.status, response.getheaders(), body + _read_to_end(connection))


def _read_to_end(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    return b"".join(parts)


async def ask_application(service: Service, artifact: Path) -> Answers:
    """The answers without a process: those of this checkout's engine and application."""
    variables = {"BERT_MODEL": str(artifact), **service.settings}
    if service.has_admin_port:
        variables["BERT_ADMIN_PORT"] = str(ADMIN_PORT)
    settings = Settings.from_environment(variables)
    found: Answers = {}
    async with Engine(settings) as engine:
        transport = httpx.ASGITransport(make_app(engine), raise_app_exceptions=False)
        for one in service.requests:
            request = one.with_headers(x_request_id="contract")
            url = f"http://service:{ADMIN_PORT if request.admin else PORT}{request.path}"
            sent = httpx.Request(request.method, url, headers=list(request.headers), content=request.body)
            response = await transport.handle_async_request(sent)
            headers = [(name.decode().lower(), value.decode("latin-1")) for name, value in response.headers.raw]
            answer = Answer(response.status_code, headers, await response.aread())
            found[f"{service.name}: {one.name}"] = (one, answer)
    return found
