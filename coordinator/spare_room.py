"""Whether there is memory for one more host that stands by: a small share of what is free may go to them."""

from __future__ import annotations

from pathlib import Path

__all__ = ("SHARE", "SPARE_BYTES", "available_memory", "room_for_another")

# What an idle worker of Ray takes that has imported Cutline.
SPARE_BYTES = 100 << 20
# All that stand by may have this part of the memory that is available.
SHARE = 1 / 16

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def room_for_another(standing: int) -> bool:
    """Whether one more may stand by where so many do. Where nobody tells what is free: no."""
    return (standing + 1) * SPARE_BYTES <= available_memory() * SHARE


def available_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Bytes that can be had without pushing others out, of the machine or of this container; 0: unknown."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        available = int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return 0
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):
        # No container, or one of the older kind.
        return available
    return available if limit == "max" else min(available, max(0, int(limit) - used))
