"""One training process: its rows, its gradients, and the parameters that only it updates.

All workers share weights and gradients; two barriers a step keep them in step. Knows nothing of text.
"""

import logging
import signal
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.data.batches import Packer
from training.data.corpus import continuing_pieces, open_sources
from training.data.sentences import TaughtSentences
from training.model.agreement import agreement, sentence_tensors
from training.model.checkpoint_files import read_checkpoint
from training.model.model import Bert
from training.model.objective import answers, as_tensors, losses, tally
from training.model.positions import extrapolate
from training.run.clock import place_in_schedule, wait_while_paused
from training.run.optimizers import make_optimizers
from training.run.recipe import TAUGHT_SHARE, Recipe
from training.run.state import Progress, find_latest, load, save

CONTINUE, SAVE, STOP = 0, 1, 2
REPORTED_STEPS = 100
POSITIONS = "encoder.positions.weight"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What the workers share: weights, gradients and the order of the first worker."""

    model: Bert
    gradients: Tensor  # [workers, parameters]
    order: Tensor  # [1] CONTINUE, SAVE or STOP
    planned: Tensor  # [1] the place in the schedule after this step, by the clock of the first worker
    barrier: Any


class Worker:
    def __init__(self, number: int, *, shared: Shared, recipe: Recipe) -> None:
        self.number = number
        self.shared = shared
        self.recipe = recipe
        by_size = sorted(shared.model.named_parameters(), key=lambda item: -item[1].numel())
        self.owned = dict(by_size[number :: recipe.workers])
        self.optimizers = make_optimizers(self.owned, recipe=recipe)
        self.losses = torch.compile(losses, dynamic=False)
        self.agreement = torch.compile(agreement, dynamic=False)
        self.answers = torch.compile(answers, dynamic=False)
        self.guide = read_checkpoint(recipe.run.guide).to(recipe.device) if recipe.run.guide else None
        self.sentences = TaughtSentences(recipe.run.teacher) if recipe.run.teacher else None
        self.third_loss = 0.0  # summed since the last report
        self.progress = Progress(began=time.time())
        self.stop_requested = False

    def run(self) -> None:
        self.prepare()
        per_step = self.recipe.tokens_per_step
        saved_at = reported_at = time.monotonic()
        reported_step = self.progress.step
        sums = np.zeros(8)
        while self.progress.planned < self.recipe.schedule.total:
            if self.number == 0:
                wait_while_paused(self.recipe.run.pause, stopped=lambda: self.stop_requested)
                self.shared.planned[0] = self.next_place()
                due = time.monotonic() - saved_at > self.recipe.save_seconds
                self.shared.order[0] = STOP if self.stop_requested else SAVE if due else CONTINUE
            sums += self.compute_gradients()
            order = self.update()
            step = self.progress.step
            if step % REPORTED_STEPS == 0 and self.number == 0:
                self.report(sums, rate=(step - reported_step) * per_step / (time.monotonic() - reported_at))
                sums, reported_at, reported_step = np.zeros(8), time.monotonic(), step
            if order != CONTINUE:
                self.save()
                saved_at = time.monotonic()
            if order == STOP:
                return
        self.save()

    def prepare(self) -> None:
        torch.set_num_threads(1)
        signal.signal(signal.SIGTERM, self.on_terminate)
        sources = open_sources(folder=self.recipe.encoded, part="train")
        names = [source.name for source in sources]
        continuing = continuing_pieces(Tokenizer.from_file(str(self.recipe.tokenizer)))
        size = self.recipe.shape.vocabulary_size
        self.packer = Packer(
            sources,
            shares=self.recipe.shares(names, tokens=0),
            vocabulary_size=size,
            continuing=continuing,
        )
        self.late_shares = self.recipe.shares(names, tokens=self.recipe.schedule.total)
        folder = find_latest(self.recipe.checkpoints)
        if folder is not None:
            self.progress = load(folder, worker=self.number, owned=self.owned, optimizers=self.optimizers)
            self.continue_positions()
            log.info("worker %d continues from %s", self.number, self.progress)
        self.shared.barrier.wait()

    def next_place(self) -> int:
        """The place in the schedule after this step."""
        return place_in_schedule(
            self.progress.tokens + self.recipe.tokens_per_step,
            total=self.recipe.schedule.total,
            began=self.progress.began,
            until=self.recipe.run.until,
            now=time.time(),
        )

    def on_terminate(self, *_: object) -> None:
        self.stop_requested = True

    def compute_gradients(self) -> Any:
        """One forward and backward pass; writes the gradients into the shared memory.

        With the third loss, TAUGHT_SHARE of the step's tokens are its sentences.
        """
        progress, schedule = self.progress, self.recipe.schedule
        length = schedule.row_length(progress.planned, step=progress.step)
        count = self.recipe.tokens_per_step // self.recipe.workers // length
        sentences = self.sentences if self.recipe.has_third_loss(progress.planned) else None
        taught_rows = max(1, int(count * TAUGHT_SHARE)) if sentences is not None else 0
        if progress.planned >= schedule.decay_begins:
            self.packer.set_shares(self.late_shares)
        self.packer.masked_share = self.recipe.masked_share(progress.planned)
        seed = (self.recipe.seed, self.number, progress.step)
        rows = self.packer.make_rows(count=max(1, count - taught_rows), length=length, seed=seed)
        packed, targets, labels = as_tensors(rows, device=self.recipe.device)
        guide = self.answers(self.guide, packed) if self.guide is not None else None
        loss, by_token, pair_scores = self.losses(self.shared.model, packed, targets, labels, guide)
        loss.backward()
        if sentences is not None:
            taught = sentences.make_rows(
                count=taught_rows * length // schedule.short_row, length=schedule.short_row, seed=seed
            )
            third = self.agreement(self.shared.model, *sentence_tensors(taught, device=self.recipe.device))
            third.backward()
            self.third_loss += float(third.detach())
        own = self.shared.gradients[self.number].split([p.numel() for p in self.shared.model.parameters()])
        for parameter, gradient in zip(self.shared.model.parameters(), own, strict=True):
            gradient.copy_(parameter.grad.view(-1))
            parameter.grad = None
        return tally(rows, by_token=by_token.float().cpu().numpy(), pair_scores=pair_scores.float().cpu().numpy())

    def update(self) -> int:
        """Updates the parameters that this worker owns; returns the order of the first worker."""
        self.shared.barrier.wait()
        order = int(self.shared.order[0])
        sizes = [parameter.numel() for parameter in self.shared.model.parameters()]
        averages = self.shared.gradients.split(sizes, dim=1)
        for (name, parameter), gradient in zip(self.shared.model.named_parameters(), averages, strict=True):
            if name in self.owned:
                parameter.grad = gradient.mean(0).view_as(parameter)
        factor = self.recipe.schedule.factor(self.progress.planned)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
            optimizer.step()
            optimizer.zero_grad()
        self.progress = replace(
            self.progress,
            step=self.progress.step + 1,
            tokens=self.progress.tokens + self.recipe.tokens_per_step,
            planned=int(self.shared.planned[0]),
        )
        self.continue_positions()
        self.shared.barrier.wait()
        return order

    def continue_positions(self) -> None:
        """Before the first long row: initializes the positions that no row has reached by extrapolation.

        A run that continues finished weights has trained them before.
        """
        positions = self.owned.get(POSITIONS)
        first_run = self.recipe.run.start is None
        if positions is None or not first_run or not self.recipe.schedule.has_long_rows(self.progress.planned):
            return
        trained = self.recipe.schedule.short_row
        moments = self.optimizers[-1].state[positions]
        if not moments["exp_avg_sq"][trained:].any():
            with torch.no_grad():
                positions[trained:] = extrapolate(positions, trained=trained)

    def save(self) -> None:
        save(
            self.recipe.checkpoints,
            worker=self.number,
            owned=self.owned,
            optimizers=self.optimizers,
            progress=self.progress,
            shape=self.recipe.shape,
            barrier=self.shared.barrier,
        )

    def report(self, sums: Any, *, rate: float) -> None:
        token_loss, tokens, right, pairs = sums.reshape(4, 2)
        log.info(
            "step %d tokens %.2fM lr x%.3f | third %.3f | "
            "en mlm %.3f nsp %.1f%% | zh mlm %.3f nsp %.1f%% | %.0f tokens/s",
            self.progress.step,
            self.progress.tokens / 1e6,
            self.recipe.schedule.factor(self.progress.planned),
            self.third_loss / REPORTED_STEPS,
            token_loss[0] / tokens[0],
            100 * right[0] / pairs[0],
            token_loss[1] / tokens[1],
            100 * right[1] / pairs[1],
            rate,
        )
        self.third_loss = 0.0
