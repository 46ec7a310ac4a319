"""With ten kept, a store does not grow with the number of its checkpoints; all that are listed restore."""

from __future__ import annotations

from pathlib import Path

from tests.retention import FLAT, KEPT, LOG_BYTES, grown, run


def test_the_store_stays_flat(tmp_path: Path) -> None:
    """`make test-retention CUTS=10000` is the same with more of them."""
    found = run(tmp_path / "store", 240, looks=24)
    assert found["whole"], found["faults"]
    # The last of all is taken by the stop; a sweep comes after the commit of another.
    assert KEPT <= found["listed"] <= KEPT + 2
    assert found["counts"] == sorted(found["counts"]) and found["counts"][0] >= found["cuts"] - KEPT - 2
    # The driver's log falls once a second, so it has risen and fallen too few times to be compared.
    factors = {name: factor for name, factor in grown(found["seen"]).items() if name != "ingress_bytes"}
    assert len(factors) == len(FLAT) - 1 and max(factors.values()) <= 1.5, (factors, found["seen"][-1])
    assert found["left"] <= LOG_BYTES
