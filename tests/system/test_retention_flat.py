"""With ten kept, a store does not grow with the number of its checkpoints; all that are listed restore."""

from __future__ import annotations

from pathlib import Path

from tests.retention import FLAT, KEPT, grown, run


def test_the_store_stays_flat(tmp_path: Path) -> None:
    """`make test-retention CUTS=10000` is the same with more of them."""
    cuts = 240
    found = run(tmp_path / "store", cuts, looks=24)
    assert found["faults"] == [] and found["counts"][-1] == cuts
    # The last of all is taken by the stop; a sweep comes after the commit of another.
    assert KEPT <= found["listed"] <= KEPT + 2
    assert found["counts"] == sorted(found["counts"]) and found["counts"][0] >= cuts - KEPT - 2
    factors = grown(found["seen"])
    assert all(factors[name] <= 1.5 for name in FLAT), (factors, found["seen"])
