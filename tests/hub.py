"""A hub on 127.0.0.1 with the part of the protocol that a download needs, and faults that a test asks for."""

import functools
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT, REPOSITORY = "a" * 40, "example/chinese-macbert-tiny"
NOT_DOWNLOADED = ("pytorch_model.bin", "tf_model.h5")  # listed, but no checkpoint with safetensors needs them


@dataclass(slots=True, eq=False)
class FakeHub:
    """One repository; its branch main and its tag v1 are at `commit`."""

    files: dict[str, bytes]
    commit: str = COMMIT
    token: str = ""  # if set, the repository is gated and needs this token
    status: int = 0  # if set, of every answer
    cut: str = ""  # of the file of this name only the first half is sent, and the connection is closed
    stall: str = ""  # of the file of this name nothing is sent; `stalled` is set
    stalled: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)  # the hub stops serving
    requests: list[str] = field(default_factory=list)  # paths
    url: str = ""

    @contextmanager
    def serve(self) -> Iterator["FakeHub"]:
        with serve_in_thread(type("Handler", (_Handler,), {"hub": self})) as self.url:
            yield self
            self.ended.set()

    def variables(self, folder: Path) -> dict[str, str]:
        """For a process that downloads into `folder` from this hub."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(folder),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }


@functools.lru_cache
def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Logs nothing."""

    def log_message(self, *_: object) -> None: ...

    def answer(
        self, status: int, content: bytes | memoryview, headers: dict[str, str] | None = None, end: int | None = None
    ) -> None:
        """With `end` the connection closes after so many bytes of the content."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:end])
        if end is not None:
            self.close_connection = True


@contextmanager
def serve_in_thread(handler: type[Handler]) -> Iterator[str]:
    """The URL of a server of these handlers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Handler(Handler):
    hub: FakeHub

    def do_GET(self) -> None:
        hub = self.hub
        hub.requests.append(self.path)
        path = self.path.partition("?")[0]
        if hub.status:
            self.answer(hub.status, b"")
        elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._refuse(
                403 if "Authorization" in self.headers else 401, "GatedRepo", "Access to this model is restricted"
            )
        elif path in (f"/api/models/{REPOSITORY}/revision/{name}" for name in ("main", "v1", hub.commit)):
            siblings = [{"rfilename": name} for name in self._names()]
            self._json({"id": REPOSITORY, "sha": hub.commit, "siblings": siblings, "private": False, "tags": []})
        elif path.startswith(f"/api/models/{REPOSITORY}/revision/"):
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
        elif path.startswith(f"/api/models/{REPOSITORY}/tree/{hub.commit}"):
            self._json([{"type": "file", "path": name, "size": 1, "oid": hub.commit} for name in self._names()])
        elif path.startswith(f"/{REPOSITORY}/resolve/"):
            self._file(path.removeprefix(f"/{REPOSITORY}/resolve/{hub.commit}/"))
        else:
            self._refuse(404, "RepoNotFound", "Repository not found")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _names(self) -> list[str]:
        return sorted({*self.hub.files, *NOT_DOWNLOADED})

    def _json(self, content: Any) -> None:
        self.answer(200, json.dumps(content).encode())

    def _refuse(self, status: int, code: str, reason: str) -> None:
        self.answer(status, b"", {"X-Error-Code": code, "X-Error-Message": reason, "X-Repo-Commit": self.hub.commit})

    def _file(self, name: str) -> None:
        if name not in self.hub.files:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        if name == self.hub.stall and self.command == "GET":
            self.hub.stalled.set()
            self.hub.ended.wait()
            return
        content = self.hub.files[name]
        headers = {"ETag": f'"{_digest(content)}"', "X-Repo-Commit": self.hub.commit}
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        half = len(content) // 2 if name == self.hub.cut else None
        self.answer(206 if first else 200, memoryview(content)[first:], headers, half)
