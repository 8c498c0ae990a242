"""The API keys that task routes require, from the setting and from a file that is read again when it changes."""

import hmac
import logging
import re
import time
from collections.abc import Callable, Mapping

from service.errors import Unauthorized
from service.settings import Settings, SettingsError, read_key_file

CHECK_SECONDS = 1.0  # between two looks at the file
BEARER = re.compile(rb"bearer +", re.IGNORECASE)  # RFC 9110, section 11.1: the scheme has no case
KEY_HEADERS = (b"x-api-key", b"api-key")
REFUSAL = "this server requires `Authorization: Bearer KEY` (or x-api-key); the key is missing or wrong"
log = logging.getLogger("service")


class ApiKeys:
    """The valid keys. Without BERT_API_KEY and BERT_API_KEY_FILE every request is admitted."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = settings.api_key_file, clock
        self._own = [key.encode() for key in settings.api_keys]
        self._from_file: list[bytes] = []
        self._read: object = None  # what identifies the content of the file that was read
        self._look_again = 0.0
        self.required = bool(self._own or self._file)

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raises Unauthorized for a missing or wrong key; the time of the comparison does not depend on the key."""
        if not self.required:
            return
        if self._file is not None and self._clock() >= self._look_again:
            self._read_file()
        stated = find_key(headers)
        valid = [hmac.compare_digest(stated, key) for key in (*self._own, *self._from_file)]
        if not any(valid):
            raise Unauthorized(REFUSAL)

    def _read_file(self) -> None:
        """Keeps the keys where the file cannot be read, as while it is being replaced."""
        assert self._file is not None
        self._look_again = self._clock() + CHECK_SECONDS
        try:
            stat = self._file.stat()
            state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if state != self._read:
                self._from_file = [key.encode() for key in read_key_file(self._file)]
                self._read = state
        except (OSError, SettingsError) as error:
            log.warning("the keys read before stay valid: BERT_API_KEY_FILE: %s", error)


def find_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The key that a request states; empty where it states none."""
    stated = headers.get(b"authorization", b"")
    if scheme := BEARER.match(stated):
        return stated[scheme.end() :]
    return next((headers[name] for name in KEY_HEADERS if name in headers), b"")
