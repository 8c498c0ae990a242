"""How batches share the device: one after another, side by side on a core each, or one prepared while another runs."""

from dataclasses import dataclass

LEAST_IN_A_LANE = 64  # tokens; below, all cores together on one batch are faster than one core on each of several


@dataclass(frozen=True, slots=True)
class Plan:
    at_once: int = 1  # batches under way
    lanes: bool = False  # each on a core of its own, or one alone on all of them; otherwise one has the device and the others wait for it, prepared

    def share(self, waiting: int, *, under_way: int) -> int | None:
        """Tokens for the next batch, so that every free lane gets some of the `waiting` ones; None: as many as a batch may have."""
        free = self.at_once - under_way
        return max(LEAST_IN_A_LANE, -(-waiting // free)) if self.lanes else None


ONE_BY_ONE = Plan()
