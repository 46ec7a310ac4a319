"""Hosts that stand by on Ray: who gets one, who does not, and that none is left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import cutline
from cutline.coordinator.spare_room import room_for_another
from cutline.coordinator.spares import SPARE
from tests.ray.cast import Cell
from tests.system.living import again, comes_to, pid_of, until

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("local_ray")]


def cell(name: str, **options: Any) -> Any:
    """A participant with these options."""
    return Cell.options(name=name, **options).remote()  # type: ignore[attr-defined]


class Plain:
    """Asks for nothing."""


def actors(system: str) -> list[str]:
    """Names of the actors of a system that Ray has."""
    named: Any = ray.util.list_named_actors  # without annotations in Ray
    return [each["name"] for each in named(all_namespaces=True) if each["namespace"] == f"cutline/{system}"]


def standing_by() -> list[int]:
    """Those that are spares, or were: processes with that title, two steps below this program, by its Ray."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            title = (process / "cmdline").read_bytes()
            if (
                title.startswith(b"ray::RayHost.stand_by")
                and parent(parent(int(process.name))) == os.getpid()
            ):
                found.append(int(process.name))
        except OSError:
            # It is gone, or no process.
            continue
    return found


def parent(pid: int) -> int:
    """The process that a process was started by."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def spare(*taken: int) -> int:
    """The process of a spare; those that were taken are none any more."""
    return until(lambda: [*{*standing_by()} - {*taken}], "a spare", timeout=60.0)[0]


def lose(system: cutline.System, *names: str) -> list[int]:
    """Ends participants' processes in one go; which ones they are in afterwards."""
    before = [pid_of(system, name) for name in names]
    for pid in before:
        os.kill(pid, signal.SIGKILL)

    def again_in() -> list[int]:
        now = [pid_of(system, name) for name in names]
        return now if all(now) and not {*now} & {*before} else []

    return until(again_in, f"{', '.join(names)} again", timeout=60.0)


def test_all_that_are_lost_at_once_go_into_spares(folder: str) -> None:
    with cutline.start(folder, name="several", interval=None, quiet=True) as system:
        cells = [cell(name, num_cpus=0) for name in ("one", "two")]
        assert [each.keep.remote("kept").result() for each in cells] == [1, 1]
        system.checkpoint()
        # One for each, unless this machine has next to no memory.
        wanted = 2 if room_for_another(1) else 1
        spares = until(lambda: found if len(found := standing_by()) >= wanted else [], "spares", timeout=60.0)
        assert len({*lose(system, "one", "two")} & {*spares}) == wanted
        assert again(lambda: [each.all.remote().result() for each in cells]) == [["kept"]] * 2


def test_spares(folder: str) -> None:
    with cutline.start(f"{folder}-bare", name="bare", interval=None, quiet=True, spares=0) as bare:
        bare.spawn("bare", Plain)
        spared(folder)
        # It is older than one that has had two spares by now.
        assert [name for name in actors("bare") if name.startswith(SPARE)] == []
    comes_to(lambda: len(actors("spared")), 0, "the end of all actors", timeout=60.0)


def spared(folder: str) -> None:
    """A system that has them."""
    with cutline.start(folder, name="spared", interval=None, quiet=True) as system:
        plain, rich = cell("plain", num_cpus=0), cell("rich", num_cpus=0.5)
        assert plain.keep.remote("kept").result() == rich.keep.remote("kept").result() == 1
        system.checkpoint()
        first = spare()
        # It reserves nothing, so whoever asked for something does not go there.
        assert lose(system, "rich") != [first]
        assert lose(system, "plain") == [first]
        assert plain.all.remote().result() == ["kept"]
        # A spare ends with the coordinator it belongs to; whoever lives in a former one does not.
        second = spare(first)
        os.kill(system.coordinator_pid, signal.SIGKILL)
        comes_to(lambda: second in standing_by(), False, "the end of the spare", timeout=60.0)
        assert again(lambda: plain.all.remote().result()) == ["kept"]
        assert pid_of(system, "plain") == first
