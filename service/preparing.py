"""Answers probes while a model is downloaded and exported: the process lives, is not ready, and says how far it is."""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from packbert.service.address import ListenError, bind_address
from packbert.service.settings import Settings

AFTER_SECONDS = 0.5  # an artifact that is there is found sooner: no server is started for it
CLIENT_SECONDS = 5  # in which a client sends something more of its request
RETRY_SECONDS = 10
ALIVE = ("/health", "/v2/health/live", "/v2")


class LastMessage(logging.Handler):
    """Keeps the last line of the log, which says what the export does."""

    text = "the model is being prepared"

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


@contextmanager
def answer_probes(settings: Settings) -> Iterator[None]:
    """While it is open, /health is 200, /metrics has no series, and all else is 503 with the last line of the log."""
    ended, last, log = threading.Event(), LastMessage(), logging.getLogger("service")
    thread = threading.Thread(target=_serve, args=(settings, last, ended), name="probes", daemon=True)
    log.addHandler(last)
    thread.start()
    try:
        yield
    finally:
        log.removeHandler(last)
        ended.set()
        thread.join()


def _serve(settings: Settings, last: LastMessage, ended: threading.Event) -> None:
    if ended.wait(AFTER_SECONDS):
        return
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_SECONDS

        def answer(self) -> None:
            path = self.path.partition("?")[0]
            alive = path in ALIVE or path == "/metrics"
            reason = f"the model is not there yet: {last.text}"
            if alive or path == "/ready":
                body = {"status": "ok" if alive else reason}
            else:
                body = {"error": reason, "code": "loading"}
            content = b"" if path == "/metrics" else json.dumps(body).encode()
            self.send_response(200 if alive else 503)
            self.send_header("content-type", "text/plain; version=0.0.4" if path == "/metrics" else "application/json")
            self.send_header("content-length", str(len(content)))
            if not alive:
                self.send_header("retry-after", str(RETRY_SECONDS))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_HEAD = do_POST = do_OPTIONS = answer  # noqa: N815 - names of the base class

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Probes are no news."""

    ports = [(settings.port, "BERT_PORT"), (settings.admin_port, "BERT_ADMIN_PORT")]
    with ExitStack() as stack:
        try:
            listeners = [one for port, name in ports if port for one in bind_address(settings.host, port, name)]
        except ListenError:
            return  # taken since the first look: the service itself says so when it listens
        for listener in listeners:
            server = ThreadingHTTPServer(listener.getsockname()[:2], Handler, bind_and_activate=False)
            server.block_on_close = False  # a slow client holds its thread alone
            server.socket.close()
            server.socket = stack.enter_context(listener)
            server.server_activate()
            stack.callback(server.shutdown)
            threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        ended.wait()
