"""Two replicas are restarted in turn under load, behind the proxies that docs/operate/tls.md configures.

`make test-proxies` runs it where nginx and HAProxy are installed; `make test` does not, because they need not be.
"""

import os
import re
import ssl
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

import httpx
import pytest

from benchmarks.harness.process import ServiceProcess, free_port
from tests.paths import ROOT
from tests.service.polling import until
from tests.serving import REPLY_SECONDS

PAGE = (ROOT / "docs" / "operate" / "tls.md").read_text("utf-8")
LINGER = re.search(r"BERT_LINGER_SECONDS=(\d+)", PAGE)
CLIENTS = 8
STEADY_REQUESTS = 200  # between the steps of a restart
PROXIES = {
    "nginx": ["nginx", "-c"],
    "haproxy": ["haproxy", "-db", "-f"],
}
NGINX = """
daemon off;
{user}
pid {folder}/pid;
error_log {folder}/log;
events {{}}
http {{
    access_log off;
    {shown}
}}
"""
AROUND = {"nginx": NGINX, "haproxy": "{shown}"}  # what the page leaves out, because every installation has it


def configuration(proxy: str, replicas: list[ServiceProcess], port: int, folder: Path) -> str:
    """That of the page, with the ports and the certificate of this test."""
    (shown,) = re.findall(rf"^```{proxy}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    user = "user root;" if os.geteuid() == 0 else ""  # the folder is this user's alone
    for printed, used in (
        *((f"127.0.0.1:808{number}", f"127.0.0.1:{one.port}") for number, one in enumerate(replicas, 1)),
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("bind :443", f"bind 127.0.0.1:{port}"),
        ("/etc/ssl/", f"{folder}/"),
    ):
        shown = shown.replace(printed, used)
    return AROUND[proxy].format(shown=shown, folder=folder, user=user)


def make_certificate(folder: Path) -> None:
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "packbert.key"), "-out", str(folder / "packbert.pem")]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    subprocess.run(command, check=True, capture_output=True)
    both = [(folder / name).read_text("utf-8") for name in ("packbert.pem", "packbert.key")]
    (folder / "packbert-with-key.pem").write_text("".join(both), "utf-8")


@contextmanager
def running(proxy: str, replicas: list[ServiceProcess], folder: Path) -> Iterator[str]:
    """The URL of the proxy; its certificate is folder/packbert.pem."""
    port = free_port()
    make_certificate(folder)
    path = folder / f"{proxy}.conf"
    path.write_text(configuration(proxy, replicas, port, folder), "utf-8")
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen([*PROXIES[proxy], str(path)], stdout=output, stderr=output)
    try:
        yield f"https://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


class Load:
    """Clients that send one request after another; `statuses` counts what they got, 0 for no response."""

    def __init__(self, url: str, certificate: Path) -> None:
        self.statuses = Counter[int]()
        self._url, self._trust = url, ssl.create_default_context(cafile=str(certificate))
        self._ended = Event()

    def send(self) -> None:
        with self._client() as client:
            while not self._ended.is_set():
                self.statuses[self._request(client)] += 1

    def end(self) -> None:
        self._ended.set()

    def wait_for_proxy(self) -> None:
        with self._client() as client:
            until(lambda: self._request(client) == 200)

    def wait_for_answers(self) -> None:
        """Until both replicas have had time to answer more."""
        enough = self.statuses.total() + STEADY_REQUESTS
        until(lambda: self.statuses.total() >= enough)

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=self._url, verify=self._trust, timeout=REPLY_SECONDS)

    def _request(self, client: httpx.Client) -> int:
        try:
            return client.post("/embed", json={"inputs": "my dog is hairy"}).status_code
        except httpx.TransportError:
            return 0


@pytest.mark.parametrize("proxy", PROXIES)
def test_a_restart_of_both_replicas_in_turn_fails_no_request(proxy: str, bert_artifact: Path, tmp_path: Path) -> None:
    assert LINGER
    settings = {"BERT_MODEL": str(bert_artifact), "BERT_TOKEN_BUDGET": "256", "BERT_LINGER_SECONDS": LINGER[1]}
    with ExitStack() as stack:
        replicas = [stack.enter_context(ServiceProcess(settings)) for _ in range(2)]
        url = stack.enter_context(running(proxy, replicas, tmp_path))
        load = Load(url, tmp_path / "packbert.pem")
        load.wait_for_proxy()
        pool = stack.enter_context(ThreadPoolExecutor(CLIENTS))
        stack.callback(load.end)
        for _ in range(CLIENTS):
            pool.submit(load.send)
        for replica in replicas:
            load.wait_for_answers()
            assert replica.terminate() == 0
            load.wait_for_answers()
            replica.__enter__()
        load.wait_for_answers()
    assert set(load.statuses) == {200}, dict(load.statuses)
