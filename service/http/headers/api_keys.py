"""The API keys that task routes require, from the setting and from a file that is read again when it changes."""

import hmac
import logging
import re
import threading
from collections.abc import Mapping

from service.errors import Unauthorized
from service.settings import Settings, SettingsError, read_key_file

CHECK_SECONDS = 1.0  # between two looks at the file
BEARER = re.compile(rb"bearer +", re.IGNORECASE)  # RFC 9110, section 11.1: the scheme has no case
KEY_HEADERS = (b"x-api-key", b"api-key")
REFUSAL = "this server requires `Authorization: Bearer KEY` (or x-api-key); the key is missing or wrong"
log = logging.getLogger("service")


class ApiKeys:
    """The valid keys. Without BERT_API_KEY and BERT_API_KEY_FILE every request is admitted.

    Those of the file are known after `open`.
    """

    def __init__(self, settings: Settings) -> None:
        self._file = settings.api_key_file
        self._own = [key.encode() for key in settings.api_keys]
        self._from_file: list[bytes] = []
        self._read: object = None  # what identifies the content of the file that was read
        self._fault = ""  # of the last look at the file
        self._closed = threading.Event()
        self.required = bool(self._own or self._file)

    def open(self) -> None:
        """Reads the file, now and once a second on a thread of its own: a disk that hangs holds up no request."""
        if self._file is not None:
            self.read_file()
            threading.Thread(target=self._watch, daemon=True, name="api keys").start()

    def close(self) -> None:
        self._closed.set()

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises Unauthorized for a missing or wrong key; the time of the comparison does not depend on the key."""
        if not self.required:
            return
        stated = find_key(headers)
        valid = [hmac.compare_digest(stated, key) for key in (*self._own, *self._from_file)]
        if not any(valid):
            raise Unauthorized(REFUSAL)

    def _watch(self) -> None:
        while not self._closed.wait(CHECK_SECONDS):
            self.read_file()

    def read_file(self) -> None:
        """Keeps the keys where the file cannot be read, as while it is being replaced."""
        assert self._file is not None
        try:
            stat = self._file.stat()
            state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if state != self._read:
                self._from_file = [key.encode() for key in read_key_file(self._file)]
                self._read = state
            fault = ""
        except (OSError, SettingsError) as error:
            fault = str(error)
        if fault and fault != self._fault:
            log.warning("the keys read before stay valid: BERT_API_KEY_FILE: %s", fault)
        self._fault = fault


def find_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The key that a request states; empty where it states none."""
    stated = headers.get(b"authorization", b"")
    if scheme := BEARER.match(stated):
        return stated[scheme.end() :]
    return next((headers[name] for name in KEY_HEADERS if name in headers), b"")
