"""A Log against a list, in one process: appending numbers and chat messages, walking through it, reading.

A Log judges each value when it is set, and its methods are Python's where a list's are the interpreter's.
Both have 100,000 values at the beginning of a round. The row of the name is appending numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.row import Row, interleave
from cutline import Log

__all__ = ("measure",)


def _timed(make: Callable[[], Any], work: Callable[[Any], None], count: int) -> Callable[[], float]:
    """Nanoseconds for each of `count` operations of `work` on a new one."""

    def sample() -> float:
        made = make()
        began = time.perf_counter_ns()
        work(made)
        return (time.perf_counter_ns() - began) / count

    return sample


def measure(*, rounds: int = 15, values: int = 100_000) -> list[Row]:
    """The rows; see the module's head."""
    numbers = list(range(values))
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"message {number}"} for number in numbers]
    places = [number * 7919 % values for number in numbers]

    def append_numbers(made: Any) -> None:
        append = made.append
        for number in numbers:
            append(number)

    def append_messages(made: Any) -> None:
        append = made.append
        for message in messages:
            append(message)

    def walk(made: Any) -> None:
        for _ in made:
            pass

    def read(made: Any) -> None:
        for place in places:
            made[place]

    def row(name: str, work: Callable[[Any], None], content: list[Any], at_most: float) -> Row:
        ours, baseline = interleave(
            rounds,
            _timed(lambda: Log(content), work, values),
            _timed(lambda: list(content), work, values),
        )
        return Row(name, "ns", ours, baseline, at_most=at_most, note=f"{values:,} values")

    return [
        row("log_vs_list", append_numbers, numbers, 6),
        row("log_append_message", append_messages, messages, 15),
        row("log_walk", walk, numbers, 1.2),
        row("log_read", read, numbers, 4),
    ]
