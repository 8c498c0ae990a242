"""Resident memory while clients send bodies that do not end, read answers slowly, and send what costs a parser most."""

import asyncio
from collections.abc import Awaitable, Callable

from benchmarks.harness.client import ask_once, post
from benchmarks.harness.process import resident_mib
from benchmarks.server.scenarios.bodies import REQUESTS
from benchmarks.server.scenarios.findings import Finding, LoadPlan, Target, random_text

MIB = 2**20
BODIES, BODY_BYTES, HOLD_SECONDS = 60, 8 * MIB, 5.0
READERS, READ_BYTES, READ_SECONDS = 12, 400, 30.0
REST_SECONDS = 5.0
FIXED_MIB, BUFFERED_MIB, CONNECTION_MIB = 64, 64, 0.25  # of OPERATING.md's formula, with the default settings


async def peak_memory(target: Target, _: LoadPlan) -> list[Finding]:
    """Each attack after the other; sampled every 50 ms."""
    for _turn in range(3):
        await _bulk(target.port)
    await asyncio.sleep(REST_SECONDS)
    before, findings = resident_mib(target.pid), []
    bound = before + FIXED_MIB + 6 * BUFFERED_MIB + CONNECTION_MIB * max(BODIES, READERS)
    findings.append(Finding("peak-memory", "resident memory before, MiB", before))
    attacks: dict[str, Callable[[int], Awaitable[object]]] = {
        f"{BODIES} bodies of 8 MB without their last byte": _unfinished_bodies,
        f"{READERS} readers of {READ_BYTES} bytes a second": _slow_readers,
        "each kind of 8 MB, 4 at a time": _large_bodies,
    }
    for name, attack in attacks.items():
        peak = await _peak(target.pid, attack(target.port))
        findings.append(Finding("peak-memory", f"{name}: peak, MiB", peak, f"<= {bound:.0f}", peak <= bound))
        await asyncio.sleep(REST_SECONDS)
        rest = resident_mib(target.pid)
        findings.append(
            Finding("peak-memory", f"{name}: at rest, MiB", rest, f"<= {1.15 * before:.0f}", rest <= 1.15 * before)
        )
    return findings


async def _peak(pid: int, attack: Awaitable[object]) -> float:
    task, peak = asyncio.ensure_future(attack), 0.0
    while not task.done():
        peak = max(peak, resident_mib(pid))
        await asyncio.sleep(0.05)
    await task
    return peak


async def _bulk(port: int) -> None:
    await ask_once(port, post("/embed", {"inputs": [random_text(6) for _ in range(2000)]}))


async def _unfinished_bodies(port: int) -> None:
    head = b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % BODY_BYTES

    async def one() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b" " * (BODY_BYTES - 1))
        try:
            await asyncio.sleep(HOLD_SECONDS)
        finally:
            writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(BODIES)))


async def _slow_readers(port: int) -> None:
    request = post("/embed", {"inputs": [random_text(6) for _ in range(2000)]})

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2 * READ_BYTES)
        writer.write(request)
        for _ in range(int(READ_SECONDS)):
            await reader.read(READ_BYTES)
            await asyncio.sleep(1)
        writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(READERS)), return_exceptions=True)


async def _large_bodies(port: int) -> None:
    for build in REQUESTS.values():
        request = build()
        await asyncio.gather(*(ask_once(port, request) for _ in range(4)))
