"""How much memory there is for hosts that stand by."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutline.coordinator import spare_room
from cutline.coordinator.spare_room import SPARE_BYTES, available_memory, room_for_another

GIB = 1 << 30


def machine(folder: Path, available: int) -> Path:
    """What a machine with so much memory available tells."""
    file = folder / "meminfo"
    lines = ("MemTotal: 99999999 kB", f"MemAvailable: {available >> 10} kB", "HugePages_Total: 0")
    file.write_text("\n".join(lines) + "\n")
    return file


def container(folder: Path, limit: str, used: int) -> Path:
    """What a container tells of itself."""
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    return folder


def test_the_less_of_machine_and_container_counts(tmp_path: Path) -> None:
    meminfo = machine(tmp_path, 8 * GIB)
    assert available_memory(meminfo, tmp_path) == 8 * GIB
    assert available_memory(meminfo, container(tmp_path, "max", GIB)) == 8 * GIB
    assert available_memory(meminfo, container(tmp_path, str(3 * GIB), GIB)) == 2 * GIB
    assert available_memory(meminfo, container(tmp_path, str(GIB), 2 * GIB)) == 0
    assert available_memory(meminfo, container(tmp_path, str(100 * GIB), GIB)) == 8 * GIB


def test_where_nobody_tells_there_is_none(tmp_path: Path) -> None:
    assert available_memory(tmp_path / "none", tmp_path) == 0
    (tmp_path / "meminfo").write_text("MemTotal: 5 kB\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 0


def test_a_small_share_goes_to_those_who_stand_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_room, "available_memory", lambda: 3 * SPARE_BYTES * 16)
    assert [room_for_another(standing) for standing in range(5)] == [True, True, True, False, False]


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="this system does not tell")
def test_this_machine_has_some() -> None:
    assert 0 < available_memory() < 1 << 50
