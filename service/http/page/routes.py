"""Answers with the files of the page. They are static: a proxy or a CDN can serve copies of them.

The page calls the task routes, /info and /metrics as any other client does.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fastapi import HTTPException, Request, Response

from ...settings import Settings
from ..headers import choose_language

FOLDER = Path(__file__).parent / "static"
LANGUAGES = ("en", "zh")  # the first is the default
HOME = "index.html"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # no text can become HTML: innerHTML and its like raise
        "trusted-types 'none'",
    )
)
HEADERS = {
    "cache-control": "no-cache",  # a copy is used after a 304: the page belongs to the version that serves it
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class PageFile(NamedTuple):
    content: bytes
    media_type: str
    etag: str


class Page:
    """The files, by their path below /page/, read once, when the first of them is requested."""

    def __init__(self, *, key_required: bool) -> None:
        self._key_required = key_required
        self._files: Mapping[str, PageFile] = {}

    async def respond(self, request: Request, name: str, vary: str = "accept-encoding") -> Response:
        """200, or 304 if the browser has the file. Raises HTTPException (404) for a name that is no file."""
        if not self._files:
            self._files = await asyncio.to_thread(read_files, key_required=self._key_required)
        file = self._files.get(name)
        if file is None:
            raise HTTPException(404, "Not Found")
        headers = {**HEADERS, "etag": file.etag, "vary": vary}
        stated = request.headers.get("if-none-match", "")
        if file.etag in (one.strip() for one in stated.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.media_type)

    async def respond_home(self, request: Request) -> Response:
        """The HTML, in the language that the browser asks for."""
        language = choose_language(request.headers.get("accept-language", ""), LANGUAGES)
        return await self.respond(request, f"{language}/{HOME}", "accept, accept-encoding, accept-language")


def open_page(settings: Settings) -> Page | None:
    """None without BERT_PAGE, and with BERT_ADMIN_PORT: the page needs tasks, /info and /metrics on the same port."""
    if not settings.page or settings.admin_port is not None:
        return None
    return Page(key_required=bool(settings.api_keys or settings.api_key_file))


def read_files(*, key_required: bool) -> dict[str, PageFile]:
    """Each file of FOLDER, and the HTML once for each language, with `lang` and `data-key` of its root set."""
    paths = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.is_file()}
    home = paths.pop(HOME).read_bytes()
    files = {name: _make_file(path.read_bytes(), path.suffix) for name, path in paths.items()}
    key = b"required" if key_required else b"none"
    for language in LANGUAGES:
        root = b'<html lang="%s" data-key="%s">' % (language.encode(), key)
        files[f"{language}/{HOME}"] = _make_file(home.replace(b'<html lang="en">', root, 1), ".html")
    return files


def _make_file(content: bytes, suffix: str) -> PageFile:
    digest = hashlib.sha256(content).hexdigest()[:20]
    return PageFile(content, MEDIA_TYPES[suffix], f'W/"{digest}"')  # weak: both codings share it
