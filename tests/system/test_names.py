"""Names of systems and participants: any text that a store can keep, however long for a file system."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutline
from cutline.errors import RefusedOption
from cutline.storage import open_store
from cutline.storage.blobs import NAME_BYTES, check_name
from tests.system.actors import Counter

LONG = "名" * (NAME_BYTES // 3)
NAMES = ["../../etc/passwd", ".h\u202e %2e ü", LONG, LONG[:-1] + "x"]


def test_any_name_and_nothing_outside_the_store(tmp_path: Path) -> None:
    system_name = f"../{LONG[:-1]}"
    for total in (1, 2):
        with cutline.start(tmp_path / "s", name=system_name, interval=None, quiet=True) as system:
            assert bool(system.resumed) == (total == 2)
            handles = [system.spawn(name, Counter) for name in NAMES]
            assert cutline.get([handle.add.remote(1) for handle in handles]) == [total] * len(NAMES)
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    with open_store(tmp_path / "s", create=False) as store:
        row = store.catalog.find(system_name, "newest")
        assert {*NAMES, "driver"} == store.read_manifest(row).images.keys()
        assert store.verify(system_name).faults == []


@pytest.mark.parametrize("name", ["", "\ud800", "a\0b", "x" * (NAME_BYTES + 1), LONG + "名"], ids=range(5))
def test_names_that_no_store_can_keep_are_refused_before_anything_is_written(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(RefusedOption, match="cannot be the name of a system: it "):
        cutline.start(tmp_path / "s", name=name, quiet=True)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RefusedOption, match="cannot be the name of a participant"):
        check_name(name, "participant")
