"""EngineClient and EngineWorker over a real unix socket; only the model behind them is fake."""

import asyncio
import dataclasses
import struct
from pathlib import Path

import numpy as np
import pytest

from packbert.model_export.artifact.batch import Tokens
from packbert.service.errors import (
    DeadlineExceeded,
    DeadlineTooShort,
    InferenceFailed,
    Overloaded,
    ServiceError,
    TooLarge,
    Unavailable,
)
from packbert.service.scheduling.request import Request
from packbert.service.workers import messages
from packbert.service.workers.engine_client import EngineClient
from tests.service.fakes import FakeRunner, adds_up, make_queue, sequence
from tests.service.fakes import submit as submit_work
from tests.service.workers.engine_processes import (
    FakeEngine,
    error_of,
    numbers_of,
    parts_of,
    play,
    start,
    submit,
    until,
)


def test_each_request_of_each_client_gets_its_own_rows(tmp_path: Path) -> None:
    async def story() -> None:
        async with start(tmp_path) as processes:
            one, other = await processes.connected(), await processes.connected()
            answers = await asyncio.gather(submit(one, 1, 2, 3), submit(other, 7), submit(one, 9, 8), submit(other, 1))
            assert [numbers_of(answer) for answer in answers] == [[1, 2, 3], [7], [9, 8], [1]]
            assert all(answer.queue_seconds >= 0 and answer.forward_seconds >= 0 for answer in answers)

    play(story)


def test_requests_of_one_loop_turn_share_a_batch(tmp_path: Path) -> None:
    async def story() -> None:
        runner = FakeRunner()
        async with start(tmp_path, runner, make_queue(token_budget=64)) as processes:
            client = await processes.connected()
            await asyncio.gather(*(submit(client, n) for n in range(10)))
            assert runner.batches == [list(range(10))]

    play(story)


def test_errors_of_the_engine_keep_their_index_and_retry_after(tmp_path: Path) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        runner.poisoned = {5}
        async with start(tmp_path, runner, make_queue(max_tokens=40, tokens_per_second=1e6)) as processes:
            client = await processes.connected()
            failing = submit(client, 3, 4, 5)
            await until(lambda: bool(runner.batches))
            hasty = submit(client, 6, timeout=0.01)
            expired = await error_of(hasty, DeadlineExceeded)
            assert "0 of 1 inputs had been dispatched" in expired.message
            assert expired.queue_seconds > 0
            assert "at most" in (await error_of(submit(client, 1, length=50), TooLarge)).message
            full = submit(client, *range(10, 18))
            await until(lambda: processes.batcher.queue.tokens == 36)
            refused = await error_of(submit(client, 2, length=8), Overloaded)
            assert refused.retry_after is not None
            assert refused.retry_after >= 1
            runner.release()
            assert (await error_of(failing, InferenceFailed)).index == 2
            assert numbers_of(await full) == list(range(10, 18))

    play(story)


def test_after_a_full_queue_requests_are_rejected_locally_for_a_moment(tmp_path: Path) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        async with start(tmp_path, runner, make_queue(token_budget=4, max_tokens=40)) as processes:
            client = await processes.connected()
            requests = [submit(client, 1)]
            await until(lambda: bool(runner.batches))
            requests += [submit(client, n) for n in range(10)]
            await until(lambda: processes.batcher.queue.tokens == 40)
            client.check_admission(4)
            await error_of(submit(client, 50), Overloaded)
            client.check_admission(3)
            retries = set()
            for tokens in (4, 5, 1000):
                with pytest.raises(Overloaded) as refusal:
                    client.check_admission(tokens)
                retries.add(refusal.value.retry_after)
            assert len(retries) == 3
            assert adds_up(processes.batcher)
            await client.query("metrics")
            assert (processes.batcher.counts.received, processes.batcher.counts.refused) == (15, 4)
            with pytest.raises(Overloaded):
                client.check_admission(4)
            await until(lambda: processes.batcher.counts.refused == 5)
            runner.release()
            await asyncio.gather(*requests)
            await until(lambda: accepts(client), 1.0)
            assert numbers_of(await submit(client, 5)) == [5]

    play(story)


def accepts(client: EngineClient) -> bool:
    try:
        client.check_admission(4)
    except ServiceError:
        return False
    return True


def test_an_oversized_request_does_not_cause_local_rejection_of_others(tmp_path: Path) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        async with start(tmp_path, runner, make_queue(token_budget=4, max_tokens=40)) as processes:
            client = await processes.connected()
            first = submit(client, 1, 2, 3)
            await until(lambda: processes.batcher.queue.tokens == 8)
            await error_of(submit(client, *range(9)), Overloaded)
            client.check_admission(4)
            runner.release()
            await first

    play(story)


def test_a_deadline_that_is_too_short_does_not_cause_local_rejection_of_others(tmp_path: Path) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        async with start(tmp_path, runner, make_queue(token_budget=4, tokens_per_second=0.1)) as processes:
            client = await processes.connected()
            requests = [submit(client, 1)]
            await until(lambda: bool(runner.batches))
            requests.append(submit(client, 2))
            await until(lambda: processes.batcher.queue.tokens == 4)
            await error_of(submit(client, 3, timeout=5.0), DeadlineTooShort)
            client.check_admission(4)
            runner.release()
            await asyncio.gather(*requests)

    play(story)


def test_a_cancelled_request_leaves_the_queue_within_100_ms_and_never_runs(tmp_path: Path) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        async with start(tmp_path, runner) as processes:
            client = await processes.connected()
            first = submit(client, 1)
            await until(lambda: bool(runner.batches))
            gone, stays = submit(client, 2), submit(client, 3)
            await until(lambda: processes.batcher.counts.in_flight == 3)
            gone.cancel()
            assert await until(lambda: processes.batcher.counts.in_flight == 2) < 0.1
            runner.release()
            await asyncio.gather(first, stays)
            assert runner.ran == {1: 1, 3: 1}
            assert processes.batcher.counts.cancelled == 1

    play(story)


def test_a_request_cancelled_in_the_turn_that_sends_it_never_runs(tmp_path: Path) -> None:
    async def story() -> None:
        async with start(tmp_path) as processes:
            client = await processes.connected()
            gone = submit(client, 2)
            await asyncio.sleep(0)
            gone.cancel()
            assert numbers_of(await submit(client, 3)) == [3]
            assert processes.runner.ran == {3: 1}

    play(story)


@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "in parts"])
def test_the_engine_keeps_nothing_of_requests_that_are_cancelled_in_the_read_that_brings_them(
    tmp_path: Path, in_parts: bool
) -> None:
    async def story() -> None:
        async with start(tmp_path) as processes:
            client = await processes.connected()
            (connection,) = processes.worker._connections
            if in_parts:
                for _ in range(100):
                    parts_of(client, 3, 12).withdraw()
            else:
                tasks = [submit(client, number) for number in range(100)]
                await asyncio.sleep(0)
                assert client._writer is not None
                client._writer.flush()
                for task in tasks:
                    task.cancel()
            assert numbers_of(await submit(client, 500)) == [500]
            await asyncio.sleep(0)
            assert connection._requests == {}

    play(story)


def test_a_lost_connection_cancels_only_its_own_requests(tmp_path: Path) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        async with start(tmp_path, runner) as processes:
            dying, living = await processes.connected(), await processes.connected()
            first = submit(living, 1)
            await until(lambda: bool(runner.batches))
            lost, kept = submit(dying, 2), submit(living, 3)
            await until(lambda: processes.batcher.counts.in_flight == 3)
            assert dying._writer is not None
            dying._writer.stream.transport.abort()
            await until(lambda: processes.batcher.counts.in_flight == 2)
            runner.release()
            assert [numbers_of(answer) for answer in await asyncio.gather(first, kept)] == [[1], [3]]
            await error_of(lost, Unavailable)
            assert runner.ran == {1: 1, 3: 1}

    play(story)


def test_requests_get_503_when_the_engine_ends_and_its_replacement_is_found(tmp_path: Path) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        async with start(tmp_path, runner) as processes:
            client = await processes.connected()
            running = submit(client, 1)
            await until(lambda: bool(runner.batches))
            waiting = submit(client, 2)
            await until(lambda: processes.batcher.counts.in_flight == 2)
            runner.release()
            assert await processes.stop_engine() == 0
            assert {type(r) for r in await asyncio.gather(running, waiting, return_exceptions=True)} <= {
                Unavailable,
                Request,
            }
            await until(lambda: client._writer is None)
            assert (await error_of(submit(client, 3), Unavailable)).retry_after == 2.0
            processes.engine = FakeEngine(runner, make_queue())
            await processes.start_engine()
            await until(lambda: client._writer is not None)
            assert numbers_of(await submit(client, 4)) == [4]

    play(story)


def test_requests_to_a_silent_engine_time_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packbert.service.workers.engine_client.QUERY_TIMEOUT_SECONDS", 0.05)

    async def story() -> None:
        runner = FakeRunner(held=True)
        async with start(tmp_path, runner) as processes:
            client = await processes.connected()
            client.grace_seconds = 0.05
            assert "does not answer" in (await error_of(submit(client, 1, timeout=0.01), Unavailable)).message
            await until(lambda: processes.batcher.counts.in_flight == 0)
            runner.release()

    play(story)


def test_queries_are_answered(tmp_path: Path) -> None:
    async def story() -> None:
        async with start(tmp_path) as processes:
            client = await processes.connected()
            assert [await client.query("ready"), await client.query("info"), await client.query("metrics")] == [
                b"some reason",
                b'{"model":"fake"}',
                b"counts",
            ]

    play(story)


def test_an_engine_with_another_artifact_is_not_used(tmp_path: Path) -> None:
    async def story() -> None:
        async with start(tmp_path) as processes:
            client = await processes.connect("another")
            await until(lambda: processes.other_artifacts == ["another"])
            assert not accepts(client)

    play(story)


HELLO = messages.frame(messages.Hello(messages.VERSION, "mine"))
VIOLATIONS = {
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "nothing": b"",
    "too long": struct.pack("<I", 2**31),
    "no hello": messages.frame(messages.Cancel(1)),
    "two hellos": HELLO + HELLO,
    "another version": messages.frame(messages.Hello(99, "mine")),
    "a negative number of rejections": HELLO + messages.frame(messages.RejectedLocally(-1)),
    "an engine's message": HELLO + messages.frame(messages.QueryReply(1, b"")),
    "random": HELLO + struct.pack("<I", 5) + b"\xff\x00\xc1aa",
    "half a frame": HELLO + struct.pack("<I", 100) + b"half",
    "a frame over the limit": HELLO + struct.pack("<I", messages.MAX_FRAME_BYTES + 1),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_connection_that_violates_the_protocol_is_dropped_without_effect_on_others(tmp_path: Path, name: str) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        async with start(tmp_path, runner) as processes:
            client = await processes.connected()
            kept = submit(client, 1)
            await until(lambda: bool(runner.batches))
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            writer.write(VIOLATIONS[name])
            writer.write_eof()
            while await reader.read(1000):
                pass
            writer.close()
            await until(lambda: len(processes.worker._connections) == 1)
            runner.release()
            assert numbers_of(await kept) == [1]

    play(story)


NO_IDS = np.zeros(0, np.int32)
EMPTY = dataclasses.replace(sequence(1), ids=NO_IDS, types=NO_IDS)


@pytest.mark.parametrize(("work", "index"), [([], None), ([sequence(1), EMPTY], 1)], ids=["none", "without tokens"])
def test_a_request_that_no_run_would_end_is_refused(tmp_path: Path, work: list[Tokens], index: int | None) -> None:
    async def story() -> None:
        async with start(tmp_path) as processes:
            client = await processes.connected()
            whole = asyncio.create_task(submit_work(client, work))
            parts = parts_of(client, 4, 16)
            parts.append([sequence(2), sequence(3)], 8)
            parts.append(work, 0)
            good = submit(client, 4)
            assert (await error_of(whole, InferenceFailed)).index == index
            assert (await error_of(asyncio.ensure_future(parts.finish()), InferenceFailed)).index == (
                None if index is None else 2 + index
            )
            assert numbers_of(await good) == [4]

    play(story)


def test_a_request_or_answer_that_no_frame_can_hold_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        runner = FakeRunner(held=True)
        async with start(tmp_path, runner) as processes:
            client = await processes.connected()
            large = submit(client, *range(40), length=1)
            await until(lambda: bool(runner.batches))
            monkeypatch.setattr(messages, "MAX_FRAME_BYTES", 300)
            parts = parts_of(client, 3, 400)
            parts.append([sequence(1)], 200)
            await until(lambda: processes.batcher.queue.reserved == 200)
            parts.append([sequence(2, 100)], 4)
            assert "send it in parts" in (await error_of(submit(client, 3, length=100), TooLarge)).message
            await error_of(asyncio.ensure_future(parts.finish()), TooLarge)
            await until(lambda: processes.batcher.queue.reserved == 0)
            runner.release()
            assert "send it in parts" in (await error_of(large, TooLarge)).message  # its answer
            assert numbers_of(await submit(client, 4)) == [4]

    play(story)
