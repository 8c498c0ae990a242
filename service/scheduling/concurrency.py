"""How batches share the device: one by one, side by side on one core each, or one prepared while another runs."""

from dataclasses import dataclass

MIN_TOKENS_PER_CORE = 64  # below, all cores together on one batch are faster than one core on each of several


@dataclass(frozen=True, slots=True)
class Concurrency:
    """`per_core`: each batch runs on a core of its own, or one alone on all of them.

    Otherwise one batch runs at a time, and the others in flight are prepared and wait for the device.
    """

    max_in_flight: int = 1  # batches
    per_core: bool = False

    @property
    def side_by_side(self) -> int:
        """How many batches run at the same time at most."""
        return self.max_in_flight if self.per_core else 1

    def share(self, queued_tokens: int, *, in_flight: int) -> int:
        """With per-core sessions: tokens for the next batch, so that every free core gets some of the queued ones."""
        return max(MIN_TOKENS_PER_CORE, -(-queued_tokens // (self.max_in_flight - in_flight)))


SERIAL = Concurrency()
