"""Participants that send each other more than they take: through the disk, and beyond it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cutline
from cutline.errors import Overloaded, SystemHalted

from .living import comes_to, left_over, until

MANY = 80_000
TEXT = "x" * 100


class Talker:
    """Says a lot at once, and counts what it hears."""

    def __init__(self) -> None:
        self.other: Any = None
        self.heard = 0

    def meet(self, other: Any) -> None:
        self.other = other

    def talk(self, count: int, me: str, met: Path) -> None:
        """Begins when the other one does: while both talk, neither listens."""
        (met / me).touch()
        until(lambda: len(list(met.iterdir())) == 2, "the other one to talk", 60.0)
        for _ in range(count):
            self.other.hear.tell(TEXT)

    def hear(self, text: str) -> None:
        self.heard += 1

    def count(self) -> int:
        return self.heard


def two(system: cutline.System) -> tuple[Any, Any]:
    """Two that know each other."""
    a, b = system.spawn("a", Talker), system.spawn("b", Talker)
    cutline.get([a.meet.remote(b), b.meet.remote(a)])
    return a, b


def both_talk(a: Any, b: Any, met: Path) -> None:
    """Tells both to say `MANY` things to each other, at once."""
    met.mkdir()
    for me, talker in (("a", a), ("b", b)):
        talker.talk.tell(MANY, me, met)


def test_a_circle_that_does_not_fit_into_memory_gets_through(tmp_path: Path) -> None:
    store, met = tmp_path / "store", tmp_path / "met"
    with left_over(), cutline.start(store, interval=None, quiet=True, outbox_bytes=1 << 16) as system:
        a, b = two(system)
        both_talk(a, b, met)
        comes_to(lambda: cutline.get([a.count.remote(), b.count.remote()]), [MANY, MANY], "all of it", 60.0)
        system.checkpoint()


def test_beyond_the_disk_the_system_halts_and_names_the_circle(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"outbox_bytes": 1 << 16, "spill_bytes": 1 << 16}
    store, met = tmp_path / "store", tmp_path / "met"
    with left_over(), cutline.start(store, interval=None, quiet=True, **limits) as system:
        a, b = two(system)
        point = system.checkpoint()
        both_talk(a, b, met)
        fault = until(lambda: system._runner.fault, "the halt", 60.0)
        assert isinstance(fault, SystemHalted) and isinstance(fault.__cause__, Overloaded)
        assert sorted(fault.__cause__.facts["cycle"]) == ["a", "b"]
        assert fault.facts["checkpoint"] == point
        with pytest.raises(SystemHalted, match="waits for"):
            a.count.remote().result()
    with left_over(), cutline.start(store, interval=None, quiet=True) as system:
        assert system.handle("a").count.remote().result() == 0
