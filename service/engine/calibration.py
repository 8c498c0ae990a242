"""How many tokens make a batch: the sizes that are tried at start, and which of them is taken."""

import math
import random
from collections.abc import Callable, Mapping, Sequence

BUDGETS = (
    128,
    256,
    512,
    1024,
    2048,
    4096,
    8192,
)  # tokens in a batch that are tried at start; smaller ones are handed over too often
PER_CORE_BUDGETS = BUDGETS[:2]  # one core gains nothing by larger ones
NEAR_PEAK = 0.95  # the smallest budget that reaches this share of the best rate is taken
NEAR_PEAK_PER_CORE = 0.9  # there the rates of two sizes differ by less than they do from start to start, and the larger one doubles everyone's wait
ROUNDS = 6  # the first warms up


def best_seconds(run: Callable[[int], float], budgets: Sequence[int], *, within: float) -> dict[int, float]:
    """The shortest time of each size, ascending, in as many rounds as fit `within` seconds; sizes that do not fit are left out.

    What else the machine does makes a run slower, never faster: the best of several is the machine's own time. The sizes take
    turns, in an order that changes, so that what happens now and then does not single one out.
    """
    best: dict[int, float] = {}
    left, order, shuffle = within, list(range(len(budgets))), random.Random(0).shuffle
    for _ in range(ROUNDS):
        for i in order:
            expected = best.get(budgets[i]) or 2 * best.get(budgets[i - 1], math.inf)
            if best and expected > left:
                continue
            seconds = run(budgets[i])
            left -= seconds
            best[budgets[i]] = min(seconds, best.get(budgets[i], math.inf))
        shuffle(order)
    return best


def smallest_batch_near_peak(rates: Mapping[int, float], worth: float = NEAR_PEAK) -> int:
    """The smallest budget whose rate reaches the share `worth` of the best."""
    best = max(rates.values())
    return min(budget for budget, rate in rates.items() if rate >= worth * best)
