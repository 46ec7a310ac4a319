"""The longest gap of a ticking handler that a checkpoint causes, against `pickle.dumps` of the same state.

The participant of `bench.stall` writes to 1 % of its pages a second, evenly, and checkpoints come once a
second by themselves. The rows beside it: the same beside a thread that computes; the longest gap while pages
are copied ahead; checkpoints that nobody expects, right after all of that is written in one handler; nothing
written; everything written.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import cutline
from bench.row import Row
from bench.stall import (
    SPELL,
    Spell,
    Ticker,
    asked,
    by_hand,
    mebibytes,
    periodic,
    spinning,
    ticking,
    undisturbed_ticks,
)

__all__ = ("measure", "measure_with")

SHARE = 0.01
ROUNDS = 8
# What a checkpoint of a state to which nobody writes may take: a millisecond, and one for each GiB.
_FIXED = _EACH_GIB = 0.001
# The longest gap that copying ahead may cause.
_PAUSE = 0.0025


def measure_with(
    name: str, kind: type[Ticker], *, at_least: float, beside: list[Row] | None = None, note: str = ""
) -> Row:
    """The row for one kind of participant. `beside`: takes the rows beside it."""
    quiet: list[Spell] = []
    busy: list[Spell] = []
    pickles: list[float] = []
    alone: list[float] = []
    with ticking(kind, 1.0) as (system, ticker):
        for number in range(ROUNDS):
            for threads in _turns(number, beside is not None):
                (busy if threads else quiet).append(periodic(system, ticker, SHARE, busy=threads))
            pickles.append(asked(ticker.pickled))
            alone.append(spinning(1.0))
    if beside is not None:
        beside += _beside(quiet, busy)
    return Row(
        name=name,
        unit="s",
        samples_ours=[spell.stall for spell in quiet],
        samples_baseline=pickles,
        ratio="baseline/ours",
        at_least=at_least,
        note=f"{mebibytes()} MiB in 8 arrays, {SHARE:.0%} of the pages and one checkpoint a second; each "
        f"sample is the median of {SPELL} checkpoints; {_figures(quiet)}; a loop that does nothing else in "
        f"another process, beside: longest gap {median(alone) * 1000:.2f} ms a second{note}",
    )


def _turns(number: int, both: bool) -> tuple[bool, ...]:
    """Without and with a thread that computes, in changing order: the first one comes after the pickle."""
    if not both:
        return (False,)
    return (False, True) if number % 2 == 0 else (True, False)


def _beside(quiet: list[Spell], busy: list[Spell]) -> list[Row]:
    return [
        Row(
            name="stall_beside_a_thread",
            unit="s",
            samples_ours=[spell.stall for spell in busy],
            samples_baseline=[spell.stall for spell in quiet],
            at_most=1.5,
            note="the same, and a Python thread that computes in the participant's process; "
            f"{_figures(busy)}",
        ),
        Row(
            name="stall_ahead",
            unit="s",
            samples_ours=[spell.pause for spell in quiet],
            samples_baseline=[_PAUSE] * len(quiet),
            at_most=1.0,
            note="the longest gap in the half second before a checkpoint, in which pages are copied ahead, "
            f"the median of {SPELL}; the longest of all {_longest(quiet):.2f} ms",
        ),
    ]


def _longest(spells: list[Spell]) -> float:
    return max(pause for spell in spells for pause in spell.pauses) * 1000


def _figures(spells: list[Spell]) -> str:
    captures = [ms for spell in spells for ms in spell.captures]
    gaps = [gap for spell in spells for gap in spell.stalls]
    return (
        f"capture_ms {median(captures):.2f}, gap_ms_max {max(gaps) * 1000:.2f}, away from checkpoints "
        f"{max(spell.elsewhere for spell in spells) * 1000:.2f} ms; "
        f"{median(spell.ticks for spell in spells):.0f} ticks a second"
    )


def measure() -> list[Row]:
    """The rows; see the module's head."""
    off: list[Spell] = []
    burst: list[Spell] = []
    nothing: list[Spell] = []
    pickles: list[float] = []
    with ticking(Ticker, None) as (system, ticker):
        untouched = undisturbed_ticks(ticker, SHARE)
        # The first ones write everything, and register the memory.
        by_hand(system, ticker, SHARE)
        for _ in range(ROUNDS):
            off.append(by_hand(system, ticker, SHARE))
            burst.append(by_hand(system, ticker, 0.0, SHARE))
            nothing.append(by_hand(system, ticker, 0.0))
            pickles.append(asked(ticker.pickled))
        written = _everything(system, ticker)
    allowed = _FIXED + _EACH_GIB * mebibytes() / 1024
    beside: list[Row] = []
    first = measure_with(
        "stall_vs_pickle",
        Ticker,
        at_least=700.0,
        beside=beside,
        note=f"; before the first checkpoint, nothing being tracked, {untouched:.0f} ticks a second. Nothing "
        f"copied ahead: {median(spell.stall for spell in off) * 1000:.2f} ms ({_figures(off)})",
    )
    return [
        first,
        *beside,
        Row(
            name="stall_burst",
            unit="s",
            samples_ours=[spell.stall for spell in burst],
            samples_baseline=pickles,
            ratio="baseline/ours",
            at_least=30.0,
            note=f"{SHARE:.0%} of the pages written in the handler before the checkpoint; {_figures(burst)}",
        ),
        Row(
            name="stall_nothing_written",
            unit="s",
            samples_ours=[spell.stall for spell in nothing],
            samples_baseline=[allowed] * ROUNDS,
            at_most=1.0,
            note=f"against 1 ms and 1 ms for each GiB; {_figures(nothing)}",
        ),
        written,
    ]


def _everything(system: cutline.System, ticker: Any) -> Row:
    """Spells of its own: what is written whole each time is found out by some captures, and forgotten."""
    spells: list[Spell] = []
    copies: list[tuple[float, float]] = []
    for number in range(-1, ROUNDS):
        spell = by_hand(system, ticker, 0.0, 1.0)
        if number >= 0:
            spells.append(spell)
            copies.append(asked(ticker.copied))
    return Row(
        name="stall_everything_written",
        unit="s",
        samples_ours=[spell.stall for spell in spells],
        samples_baseline=[fresh for fresh, _ in copies],
        at_most=1.2,
        note="all pages written in the handler before the checkpoint; against a plain copy of the arrays; "
        f"one to memory that was used before takes {median(again for _, again in copies):.3f} s; "
        f"{_figures(spells)}",
    )
