"""A failing run fails only the request that causes it; on a fake runner and a fake clock."""

from collections.abc import Sequence

import pytest

from packbert.model_export.artifact.batch import Batch, Row, Tokens
from packbert.service.errors import InferenceFailed, NotFinite, OutOfMemory
from packbert.service.scheduling.batcher import MAX_FAILURES_TO_SPLIT
from packbert.service.scheduling.cores import Concurrency
from tests.service.fakes import FakeRunner, FakeTime, make_queue, play, played, sequence, submit
from tests.service.scheduling.serving import ask, outcomes, serving


@pytest.mark.parametrize("depth", [1, 2])
@played
async def test_a_failing_batch_fails_only_the_culprit_and_the_next_request_is_answered(
    time: FakeTime, depth: int
) -> None:
    runner = FakeRunner()
    runner.poisoned = {5}
    async with serving(runner, time, make_queue(token_budget=64), concurrency=Concurrency(depth)) as batcher:
        assert await outcomes(*(ask(batcher, n) for n in range(16))) == [
            [n] if n != 5 else InferenceFailed for n in range(16)
        ]
        assert await outcomes(ask(batcher, 1)) == [[1]]
        assert batcher.failures.failed_runs == 5  # of 16, 8, 4, 2 and 1 sequences
    assert len(runner.batches) == 10


@played
async def test_the_error_names_the_failing_input(time: FakeTime) -> None:
    runner = FakeRunner()
    runner.poisoned = {5}
    async with serving(runner, time) as batcher:
        with pytest.raises(InferenceFailed) as failure:
            await submit(batcher, [sequence(n) for n in (3, 4, 5, 6)], timeout_seconds=9)
    assert failure.value.index == 2


@played
async def test_the_error_names_no_input_when_a_batch_is_not_split(time: FakeTime) -> None:
    runner = FakeRunner()
    runner.always_fails = True
    async with serving(runner, time, make_queue(token_budget=64)) as batcher:
        batcher.failures_in_a_row = MAX_FAILURES_TO_SPLIT
        with pytest.raises(InferenceFailed) as failure:
            await submit(batcher, [sequence(n) for n in (3, 4)], timeout_seconds=9)
    assert failure.value.index is None


@played
async def test_a_non_finite_row_fails_its_request_and_the_rest_of_the_batch_is_answered_without_another_run(
    time: FakeTime,
) -> None:
    runner = FakeRunner()
    runner.not_finite = {5}
    async with serving(runner, time, make_queue(token_budget=64)) as batcher:
        assert await outcomes(*(ask(batcher, n) for n in range(8))) == [[n] if n != 5 else NotFinite for n in range(8)]
    assert len(runner.batches) == 1


def test_sequences_made_non_finite_by_a_neighbour_run_again_without_it() -> None:
    class Spreading(FakeRunner):
        """The culprit 5 shares its attention row with 4 and 6."""

        async def run(self, sequences: Sequence[Tokens], *, all_cores: bool) -> tuple[Sequence[Row | None], Batch]:
            self.not_finite = {4, 5, 6} if 5 in {int(tokens.ids[0]) for tokens in sequences} else set()
            return await super().run(sequences, all_cores=all_cores)

    async def story(time: FakeTime) -> None:
        runner = Spreading()
        async with serving(runner, time, make_queue(token_budget=64)) as batcher:
            assert await outcomes(*(ask(batcher, n) for n in range(8))) == [
                [n] if n != 5 else NotFinite for n in range(8)
            ]
        assert set(runner.batches[1]) | set(runner.batches[2]) <= {4, 5, 6}

    play(story)


@played
async def test_too_few_rows_fail_the_batch_and_the_next_request_is_answered(time: FakeTime) -> None:
    runner = FakeRunner()
    runner.drops_last_row = True
    async with serving(runner, time) as batcher:
        assert await outcomes(ask(batcher, 1), ask(batcher, 2)) == [InferenceFailed, InferenceFailed]
        runner.drops_last_row = False
        assert await outcomes(ask(batcher, 3)) == [[3]]


@played
async def test_splitting_stops_when_every_run_fails(time: FakeTime) -> None:
    runner = FakeRunner()
    runner.always_fails = True
    async with serving(runner, time, make_queue(token_budget=4000, max_tokens=8000)) as batcher:
        assert set(map(str, await outcomes(*(ask(batcher, n) for n in range(900))))) == {str(InferenceFailed)}
        first = len(runner.batches)
        assert first <= 2 * 16
        await outcomes(*(ask(batcher, n) for n in range(900)))
        assert len(runner.batches) == first + 1
        runner.always_fails = False
        assert await outcomes(ask(batcher, 3)) == [[3]]
        assert batcher.failures_in_a_row == 0


@played
async def test_out_of_memory_halves_the_batch_answers_all_requests_and_lowers_the_budget(time: FakeTime) -> None:
    runner = FakeRunner()
    runner.max_tokens = 20
    async with serving(runner, time, make_queue(token_budget=64)) as batcher:
        assert await outcomes(*(ask(batcher, n) for n in range(16))) == [[n] for n in range(16)]
        assert batcher.queue.token_budget == 16
        assert await outcomes(*(ask(batcher, n) for n in range(16))) == [[n] for n in range(16)]
        assert batcher.failures.out_of_memory == 3
    assert max(runner.lengths[-4:]) <= 16


@played
async def test_a_sequence_too_large_for_the_memory_fails_and_the_budget_stays(time: FakeTime) -> None:
    runner = FakeRunner()
    runner.max_tokens = 20
    async with serving(runner, time, make_queue(token_budget=18)) as batcher:
        assert await outcomes(ask(batcher, 1, length=30)) == [OutOfMemory]
        assert batcher.queue.token_budget == 18
