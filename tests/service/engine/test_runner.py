"""The runner and its calibration on a real graph: rows that are not finite, out of memory, the token budget."""

import asyncio
import dataclasses
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from packbert.model_export.artifact.batch import Batch, Row, Tokens
from packbert.service.artifact import Artifact
from packbert.service.engine import calibration
from packbert.service.engine.calibration import BUDGETS, best_seconds, measure, self_test, smallest_batch_near_peak
from packbert.service.engine.engine import MAX_COPIED_BYTES, concurrency_for
from packbert.service.engine.runner import ModelRunner, is_out_of_memory
from packbert.service.engine.session import Arrays, Session
from packbert.service.errors import DeviceError, InferenceFailed
from packbert.service.scheduling.cores import Concurrency
from tests.e2e.test_neighbours import equal
from tests.service.engine.runners import PER_CORE, open_runner


class LargeArtifact(Artifact):
    """An artifact with more weights than are copied for per-core sessions."""

    weights_bytes = MAX_COPIED_BYTES + 1


@pytest.fixture
def runner(bert_artifact: Path) -> Iterator[ModelRunner]:
    with open_runner(bert_artifact, threads=1) as runner:
        yield runner


def tokens(*ids: int, types: Sequence[int] = ()) -> Tokens:
    of_segments = np.array(types or [0] * len(ids), np.int32)
    return Tokens(ids=np.array(ids, np.int32), types=of_segments, outputs=frozenset({"cls", "mean"}))


@pytest.mark.parametrize("concurrency", [Concurrency(2), Concurrency(2, per_core=True)])
def test_batches_in_flight_together_get_the_same_rows_as_one_by_one(
    runner: ModelRunner, bert_artifact: Path, concurrency: Concurrency
) -> None:
    """On a CPU the service prepares no batch ahead; the code is the same as on a GPU."""
    before = set(threading.enumerate())
    work = [
        [tokens(2, *range(5, 5 + length), n, 3) for length in range(1 + n % 7, 40, 1 + n % 5)] for n in range(10, 34)
    ]
    with open_runner(bert_artifact, concurrency=concurrency) as several:
        assert len(set(threading.enumerate()) - before) == 2  # both at once: there may be no room for a thread later

        async def all_at_once() -> Any:
            runs = (several.run(sequences, all_cores=not concurrency.per_core) for sequences in work)
            return await asyncio.gather(*runs)

        for sequences, (rows, _) in zip(work, asyncio.run(all_at_once()), strict=True):
            assert all(map(equal, rows, runner.run_sync(sequences)[0]))


@pytest.mark.parametrize(("ids", "types"), [([170], [0]), ([-1], [0]), ([5], [2]), ([5], [-1]), ([5] * 145, [0] * 145)])
def test_an_index_outside_its_table_is_rejected(runner: ModelRunner, ids: list[int], types: list[int]) -> None:
    """The golden model has 170 words, two segments and 144 positions."""
    with pytest.raises(InferenceFailed, match="this model has 0 to"):
        runner.run_sync([tokens(*ids, types=types)])
    assert runner.run_sync([tokens(*[169] * 144, types=[1] * 144)])[0][0] is not None


def test_the_self_test_fails_where_a_later_vector_is_not_finite(bert_artifact: Path) -> None:
    class NonFinite(ModelRunner):
        def run_sync(self, sequences: Sequence[Tokens], *, all_cores: bool = True) -> tuple[list[Row | None], Batch]:
            rows, batch = super().run_sync(sequences, all_cores=all_cores)
            return ([*rows[:-1], None] if len(rows) > 1 else rows), batch

    with (
        open_runner(bert_artifact, kind=NonFinite) as non_finite,
        pytest.raises(DeviceError, match="the self-test failed: cosine nan"),
    ):
        self_test(non_finite)


@pytest.mark.parametrize(("concurrency", "max_in_flight"), [(Concurrency(2), 1), (Concurrency(2, per_core=True), 2)])
def test_one_batch_runs_at_a_time_on_each_device_or_core(
    bert_artifact: Path, concurrency: Concurrency, max_in_flight: int
) -> None:
    class Counting:
        """Runs for 50 ms, so that a run at the same time would be counted."""

        def __init__(self, session: Session) -> None:
            self.session, self.inputs = session, session.inputs
            self.running = self.most = 0

        def run(self, names: Sequence[str], feeds: Arrays) -> list[NDArray[np.generic]]:
            self.running += 1
            time.sleep(0.05)
            self.most = max(self.most, self.running)
            self.running -= 1
            return self.session.run(names, feeds)

    with open_runner(bert_artifact, concurrency=concurrency) as several:
        counting = several._session = several._per_core_session = Counting(several._session)  # type: ignore[assignment]

        async def all_at_once() -> None:
            await asyncio.gather(*(several.run([tokens(2, n, 3)], all_cores=False) for n in range(10, 20)))

        asyncio.run(all_at_once())
        assert counting.most == max_in_flight


def test_calibration_holds_the_canary_error_and_the_batch_invariance(runner: ModelRunner) -> None:
    """A canary whose reference is off by 0.01, and an answer that depends on the batch."""
    first, *others = runner.artifact.manifest.golden
    off = dataclasses.replace(first, cls=(first.cls[0] + 0.01, *first.cls[1:]))
    manifest = dataclasses.replace(runner.artifact.manifest, golden=(off, *others))

    class Noisy(ModelRunner):
        def run_sync(self, sequences: Sequence[Tokens], *, all_cores: bool = True) -> tuple[list[Row | None], Batch]:
            rows, batch = super().run_sync(sequences, all_cores=all_cores)
            error = np.float32(1e-5 * (len(rows) - 1))
            return [row and row | {"cls": np.asarray(row["cls"], np.float32) + error} for row in rows], batch

    with open_runner(dataclasses.replace(runner.artifact, manifest=manifest), kind=Noisy) as noisy:
        measured = measure(noisy, token_budget=128)
    assert measured.canary_error == pytest.approx(0.01, abs=1e-4)
    assert not measured.batch_invariant


def test_per_core_sessions_are_for_several_cores_and_small_or_int8_models(runner: ModelRunner) -> None:
    folder, manifest = runner.artifact.folder, runner.artifact.manifest
    of_int8, of_cuda = dataclasses.replace(manifest, precision="int8"), dataclasses.replace(manifest, device="cuda")
    large, int8, cuda = (LargeArtifact(folder, one, "") for one in (manifest, of_int8, of_cuda))
    assert concurrency_for(runner.artifact, 1) == concurrency_for(large, 4) == Concurrency()
    assert concurrency_for(runner.artifact, 4) == concurrency_for(int8, 4) == Concurrency(4, per_core=True)
    assert concurrency_for(cuda, 4) == Concurrency(2)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (
            RuntimeError(
                "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : ... bfc_arena.cc:376 "
                "Failed to allocate memory for requested buffer of size 9"
            ),
            True,
        ),
        (RuntimeError("[ONNXRuntimeError] : 1 : FAIL : CUDA failure 2: out of memory"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : indices element out of data bounds"), False),
    ],
)
def test_out_of_memory_is_recognized_by_its_message(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


def test_a_run_out_of_memory_raises_and_the_next_one_succeeds(bert_artifact: Path) -> None:
    """In a process of its own, whose address space is limited after the model has been loaded."""
    program = f"""
import resource, numpy as np
from pathlib import Path
from packbert.model_export.artifact.batch import Row, Tokens
from packbert.service.artifact import open_artifact
from packbert.service.errors import OutOfMemory
from packbert.service.engine.runner import ModelRunner
runner = ModelRunner(open_artifact(Path({str(bert_artifact)!r})), threads=1)
runner.open()
one = Tokens(ids=np.full(64, 9, np.int32), types=np.zeros(64, np.int32), outputs=frozenset({{"cls"}}))
runner.run_sync([one])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**25, resource.RLIM_INFINITY))
try:
    runner.run_sync([one] * 2000)
except OutOfMemory:
    print("out of memory", len(runner.run_sync([one])[0]))
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert finished.stdout == "out of memory 1\n", finished.stderr


def test_the_smallest_budget_within_five_percent_of_the_best_is_taken() -> None:
    assert smallest_batch_near_peak({32: 500, 64: 940, 128: 960, 256: 1000, 512: 990}) == 128
    assert smallest_batch_near_peak({32: 1000}) == 32


def test_measuring_finds_a_token_budget(runner: ModelRunner) -> None:
    measured = measure(runner, token_budget=0)
    assert measured.token_budget in BUDGETS
    assert measured.tokens_per_second > 0
    assert measured.batch_invariant
    assert measured.canary_error < 1e-5


@pytest.mark.parametrize(("milliseconds", "budget"), [(1, 256), (4, 256), (6, 128), (60, 128)])
def test_a_core_of_its_own_gets_small_batches_unless_they_are_short(
    bert_artifact: Path, monkeypatch: pytest.MonkeyPatch, milliseconds: float, budget: int
) -> None:
    with open_runner(bert_artifact, concurrency=PER_CORE) as runner:
        tried: list[int] = []

        def rates(_: ModelRunner, budgets: Sequence[int]) -> dict[int, float]:
            tried.extend(budgets)
            return {one: 2 * one / milliseconds * 1000 for one in budgets}  # of both cores

        monkeypatch.setattr(calibration, "_rates", rates)
        assert measure(runner, token_budget=0).token_budget == budget
        assert tried == [128]


def test_a_budget_beyond_those_tried_is_measured_with_the_largest_of_them(bert_artifact: Path) -> None:
    measured = []

    class Recording(ModelRunner):
        def run_side_by_side(self, sequences: Sequence[Tokens]) -> int:
            measured.append(sum(len(one) for one in sequences))
            return super().run_side_by_side(sequences)

    with open_runner(bert_artifact, kind=Recording) as recording:
        assert measure(recording, token_budget=2**20).token_budget == 2**20
    assert set(measured) == {BUDGETS[-1]}


@pytest.mark.parametrize("concurrency", [Concurrency(), Concurrency(2, per_core=True)])
def test_the_rate_is_that_of_all_cores_together(bert_artifact: Path, concurrency: Concurrency) -> None:
    rates = []

    class Steady(ModelRunner):
        """64 tokens in at least 50 ms, on each core."""

        def run_sync(self, sequences: Sequence[Tokens], *, all_cores: bool = True) -> tuple[list[Row | None], Batch]:
            time.sleep(0.05)
            return super().run_sync(sequences, all_cores=all_cores)

        def run_side_by_side(self, sequences: Sequence[Tokens]) -> int:
            started = time.monotonic()
            batches = super().run_side_by_side(sequences)
            assert batches == concurrency.side_by_side
            rates.append(batches * 64 / (time.monotonic() - started))
            return batches

    with open_runner(bert_artifact, concurrency=concurrency, kind=Steady) as steady:
        measured = measure(steady, token_budget=64).tokens_per_second
    assert max(rates) / 1.9 < measured <= max(rates)


class Machine:
    """Takes 0.2 ms per run and 1 us per token, and three times as long in some runs."""

    def __init__(self, *, busy_every: int, slowness: float = 1.0) -> None:
        self.busy_every, self.slowness = busy_every, slowness
        self.runs = 0
        self.spent = 0.0

    def run(self, budget: int) -> float:
        self.runs += 1
        seconds = (0.0002 + budget * 1e-6) * self.slowness * (3 if self.runs % self.busy_every == 0 else 1)
        self.spent += seconds
        return seconds


@pytest.mark.parametrize("busy_every", [2, 3, 4, 5, 7, 1000])
def test_other_load_during_measuring_does_not_change_the_budget(busy_every: int) -> None:
    seconds = best_seconds(Machine(busy_every=busy_every).run, BUDGETS, within=1.5)
    assert smallest_batch_near_peak({budget: budget / one for budget, one in seconds.items()}) == 4096


@pytest.mark.parametrize("slowness", [1, 10, 100, 1000, 10_000])
def test_measuring_stays_within_its_time_and_tries_at_least_the_smallest_budget(slowness: float) -> None:
    machine = Machine(busy_every=10**9, slowness=slowness)
    seconds = best_seconds(machine.run, BUDGETS, within=1.5)
    assert BUDGETS[0] in seconds
    assert machine.spent <= 1.5 or machine.runs == 1


def test_a_given_budget_costs_three_runs() -> None:
    machine = Machine(busy_every=10**9)
    assert best_seconds(machine.run, (256,), within=1.5) == {256: pytest.approx(0.0002 + 256e-6)}
    assert machine.runs == 3
