"""The longest gap of a ticking handler that a checkpoint causes, against `pickle.dumps` of the same state.

The participant of `bench.stall` writes to 1 % of its pages a second, evenly, and checkpoints come once a
second by themselves. The rows beside it: the same beside a thread that computes; checkpoints that nobody
expects, right after all of that is written in one handler; nothing written; everything written.
"""

from __future__ import annotations

from statistics import median

from bench.row import Row
from bench.stall import SPELL, Spell, Ticker, asked, by_hand, mebibytes, periodic, spinning, ticking

__all__ = ("measure", "measure_with")

SHARE = 0.01
ROUNDS = 7
# What a checkpoint of a state to which nobody writes may take: a millisecond, and one for each GiB.
_FIXED = _EACH_GIB = 0.001


def measure_with(
    name: str, kind: type[Ticker], *, at_least: float, beside: list[Row] | None = None, note: str = ""
) -> Row:
    """The row for one kind of participant. `beside`: takes the row beside a thread that computes."""
    quiet: list[Spell] = []
    busy: list[Spell] = []
    pickles: list[float] = []
    with ticking(kind, 1.0) as (system, ticker):
        for _ in range(ROUNDS):
            quiet.append(periodic(system, ticker, SHARE))
            if beside is not None:
                busy.append(periodic(system, ticker, SHARE, busy=True))
            pickles.append(asked(ticker.pickled))
    if beside is not None:
        beside.append(
            Row(
                name="stall_beside_a_thread",
                unit="s",
                samples_ours=[spell.stall for spell in busy],
                samples_baseline=[spell.stall for spell in quiet],
                at_most=1.5,
                note="the same, and a Python thread that computes in the participant's process",
            )
        )
    return Row(
        name=name,
        unit="s",
        samples_ours=[spell.stall for spell in quiet],
        samples_baseline=pickles,
        ratio="baseline/ours",
        at_least=at_least,
        note=f"{mebibytes()} MiB in 8 arrays, {SHARE:.0%} of the pages and one checkpoint a second; each "
        f"sample is the median of {SPELL} checkpoints; {_figures(quiet)}{note}",
    )


def _figures(spells: list[Spell]) -> str:
    captures = [ms for spell in spells for ms in spell.captures]
    gaps = [gap for spell in spells for gap in spell.stalls]
    return (
        f"capture_ms {median(captures):.2f}, gap_ms_max {max(gaps) * 1000:.2f}, longest gap in the half "
        f"second before {median(spell.before for spell in spells) * 1000:.2f} ms, away from checkpoints "
        f"{max(spell.elsewhere for spell in spells) * 1000:.2f} ms; "
        f"{median(spell.ticks for spell in spells):.0f} ticks a second"
    )


def measure() -> list[Row]:
    """The rows; see the module's head."""
    alone = spinning(5.0)
    off: list[Spell] = []
    burst: list[Spell] = []
    nothing: list[Spell] = []
    everything: list[Spell] = []
    pickles: list[float] = []
    copies: list[float] = []
    with ticking(Ticker, None) as (system, ticker):
        # The first ones write everything, and register the memory.
        by_hand(system, ticker, SHARE)
        for _ in range(ROUNDS):
            off.append(by_hand(system, ticker, SHARE))
            burst.append(by_hand(system, ticker, 0.0, SHARE))
            nothing.append(by_hand(system, ticker, 0.0))
            everything.append(by_hand(system, ticker, 0.0, 1.0))
            pickles.append(asked(ticker.pickled))
            copies.append(asked(ticker.copied))
    allowed = _FIXED + _EACH_GIB * mebibytes() / 1024
    beside: list[Row] = []
    first = measure_with(
        "stall_vs_pickle",
        Ticker,
        at_least=700.0,
        beside=beside,
        note=f". Nothing copied ahead: {median(spell.stall for spell in off) * 1000:.2f} ms "
        f"({_figures(off)}). A loop alone on this machine: longest gap {alone * 1000:.2f} ms in 5 s",
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
        Row(
            name="stall_everything_written",
            unit="s",
            samples_ours=[median(spell.captures) / 1000 for spell in everything],
            samples_baseline=copies,
            at_most=1.2,
            note=f"the capture, against a plain copy of the arrays; {_figures(everything)}",
        ),
    ]
