"""How often a checkpoint is worth what it costs: the two classic answers.

The more often, the more time checkpoints take; the less often, the more work is done again after a loss. With
a cost of `cost` seconds a checkpoint and `mean` seconds between losses, both much longer than a handler:

* J. W. Young, A first order approximation to the optimum checkpoint interval, Communications of the ACM
  17(9), 1974: the square root of ``2 * cost * mean``.
* J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation
  Computer Systems 22(3), 2006: the same with corrections that matter where the cost is no longer small beside
  the time between losses.

Both count from the end of one checkpoint to the beginning of the next, where the program stands still for the
checkpoint. Here it goes on, and the cost is only the time by which the program is later.
"""

from __future__ import annotations

from math import sqrt

__all__ = ("daly", "share_lost", "young")


def young(cost: float, mean: float) -> float:
    """Young's interval, in seconds."""
    return sqrt(2 * cost * mean)


def daly(cost: float, mean: float) -> float:
    """Daly's interval, in seconds."""
    if cost >= 2 * mean:
        return mean
    part = cost / (2 * mean)
    return young(cost, mean) * (1 + sqrt(part) / 3 + part / 9) - cost


def share_lost(interval: float, cost: float, mean: float) -> float:
    """The share of the time that goes to checkpoints and to work that is done again, to the first order."""
    return cost / interval + interval / (2 * mean)
