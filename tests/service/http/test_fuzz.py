"""However a stream of bytes is cut, a connection gives the same answers to it; on a fake transport."""

import re
from collections import Counter
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packbert.service.http.limits import ConnectionLimits
from tests.service.fakes import FakeTime, play, settle
from tests.service.http.connection import Client

CHANGING = re.compile(rb"[0-9a-f]{16}|date: [^\r]+")  # the id of a request that the connection answers itself
TOKENS = st.text("abcdefgXYZ-09", min_size=1, max_size=12).map(str.encode)
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=30).map(lambda s: s.strip().encode())
HEADERS = st.lists(st.tuples(TOKENS.map(lambda name: b"x-" + name), VALUES), max_size=4)
SPECIAL = st.sampled_from(
    [
        b"",
        b"connection: close\r\n",
        b"connection: upgrade\r\nupgrade: h2c\r\n",
        b"expect: 100-continue\r\n",
        b"transfer-encoding: gzip, chunked\r\n",
        b"content-length: 3\r\n",
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Mostly valid ones."""
    path = b"/" + draw(TOKENS)
    version = draw(st.sampled_from([b"1.1"] * 8 + [b"1.0", b"2.0"]))
    host = draw(st.sampled_from([b"host: x\r\n"] * 8 + [b"", b"host: x\r\nHost: y\r\n"]))
    headers = host + b"".join(b"%b: %b\r\n" % one for one in draw(HEADERS)) + draw(SPECIAL)
    body = draw(st.binary(max_size=300))
    kind = draw(st.sampled_from(["GET", "length", "chunked", "trailers"]))
    if kind == "GET":
        return b"GET %b HTTP/%b\r\n%b\r\n" % (path, version, headers)
    if kind == "length":
        return b"POST %b HTTP/%b\r\ncontent-length: %d\r\n%b\r\n%b" % (path, version, len(body), headers, body)
    cut = len(body) // 2
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part)
    end = b"x-after: 1\r\n" if kind == "trailers" else b""
    return b"POST %b HTTP/%b\r\ntransfer-encoding: chunked\r\n%b\r\n%b0\r\n%b\r\n" % (
        path,
        version,
        headers,
        chunks,
        end,
    )


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Requests one after the other, of which some bytes may be lost, changed or added."""
    stream = b"".join(draw(st.lists(requests(), min_size=1, max_size=4)))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(stream)))
        stream = stream[:at] + draw(st.binary(max_size=3)) + stream[at + draw(st.integers(0, 3)) :]
    return stream


def answers(pieces: list[bytes]) -> tuple[bytes, bool, Counter[tuple[int, str]]]:
    """What was written, whether the connection is closed, and what was counted.

    A request that turns out to be malformed behind its head may have begun, and its client been asked for its body.
    """
    counted: Counter[tuple[int, str]] = Counter()

    async def story(_: FakeTime) -> Client:
        limits = ConnectionLimits(
            client_timeout_seconds=5.0, max_header_bytes=10_000, on_rejected=lambda *each: counted.update([each])
        )
        client = Client(limits)
        await client.transport.open()
        await client.send(*pieces)
        await settle(200)
        client.transport.abort_or_close()
        return client

    client = play(story)
    assert client.statuses.count(200) <= len(client.paths)
    written = client.transport.written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    return CHANGING.sub(b"", written), client.transport.closed, counted


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stream=streams(), cuts=st.lists(st.integers(0, 3000), max_size=12))
def test_the_answers_do_not_depend_on_how_the_bytes_arrive(stream: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:end] for start, end in pairwise(places)]
    assert answers(pieces) == answers([stream])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stream=streams())
def test_a_stream_that_arrives_byte_by_byte_is_answered_as_one_that_arrives_at_once(stream: bytes) -> None:
    assert answers([bytes([byte]) for byte in stream]) == answers([stream])
