"""Processor time of the coordinator for a checkpoint, by the number of participants.

Two rows. `coordinator_slope`: by what factor it grows from 1,000 to 10,000 participants, against the factor
from 100 to 1,000; what is linear grows alike, what is not grows more. `coordinator_vs_decoding`: that of
10,000 participants against decoding what they say when they are prepared, which nobody can do without.

The coordinator and its store are those of `bench.simulated_city`. As many checkpoints were taken before as
retention keeps, so that each one gives up an old one, with all its packs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench.row import Row, interleave
from bench.simulated_city import SimulatedCity
from cutline.barrier.wire import claims_from_doc
from cutline.coordinator.cycles import seldom_looking
from cutline.participant.control import unpack_control

__all__ = ("measure",)

SIZES = (100, 1_000, 10_000)


def _decode(packets: Sequence[bytes]) -> float:
    """Seconds of processor time for decoding what participants say."""
    began = time.process_time()
    for packet in packets:
        claims_from_doc(unpack_control(packet)["claims"])
    return time.process_time() - began


def measure(*, rounds: int = 5, sizes: Sequence[int] = SIZES, warm: int = 1) -> list[Row]:
    """The rows; see the module's head."""
    small, middle, large = (SimulatedCity(size) for size in sizes)
    for city in (small, middle, large):
        for _ in range(city.c.settings.keep):
            city.checkpoint()
    packets = large.packets()

    def growth(less: SimulatedCity, more: SimulatedCity) -> float:
        # As many participants' worth of both; the smaller sizes are noisy alone.
        times = max(1, len(more.members) // len(less.members))
        of_less = [less.checkpoint() for _ in range(times)]
        return more.checkpoint() / (sum(of_less) / times)

    # As in the coordinator's process.
    with seldom_looking():
        grown = interleave(rounds, lambda: growth(middle, large), lambda: growth(small, middle), warm=warm)
        spent = interleave(rounds, large.checkpoint, lambda: _decode(packets), warm=warm)
    each = 1e6 / len(large.members)
    return [
        Row(
            name="coordinator_slope",
            unit="x",
            samples_ours=grown[0],
            samples_baseline=grown[1],
            at_most=1.5,
            note=f"processor time of a checkpoint, {sizes[1]} -> {sizes[2]} participants, against {sizes[0]} "
            f"-> {sizes[1]}; store in memory, retention included",
        ),
        Row(
            name="coordinator_vs_decoding",
            unit="us each",
            samples_ours=[seconds * each for seconds in spent[0]],
            samples_baseline=[seconds * each for seconds in spent[1]],
            at_most=5,
            note=f"{sizes[2]} participants; decoding: their packets, claims included",
        ),
    ]
