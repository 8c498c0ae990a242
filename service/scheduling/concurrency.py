"""How batches share the device: one after another, side by side on a core each, or one prepared while another runs."""

from dataclasses import dataclass

MIN_TOKENS_PER_CORE = 64  # tokens; below, all cores together on one batch are faster than one core on each of several


@dataclass(frozen=True, slots=True)
class Concurrency:
    max_in_flight: int = 1  # batches under way
    per_core: bool = False  # each on a core of its own, or one alone on all of them; otherwise one has the device and the others wait for it, prepared

    def share(self, waiting: int, *, in_flight: int) -> int | None:
        """Tokens for the next batch, so that every free lane gets some of the `waiting` ones; None: as many as a batch may have."""
        free = self.max_in_flight - in_flight
        return max(MIN_TOKENS_PER_CORE, -(-waiting // free)) if self.per_core else None


SERIAL = Concurrency()
