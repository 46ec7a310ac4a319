"""The power way: each prefix of the log of a deed is rebuilt as a power cut would leave it, and judged."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from tests.crash.deeds import here, prepare
from tests.crash.disk import Choice, Disk, choices, lay_out, tree_of
from tests.crash.judge import Said, Wrong, judge, said_in
from tests.crash.worker import Worker

__all__ = ("Tally", "power")


@dataclass
class Tally:
    """``points``: crash points looked at; ``states``: different ones among them. ``lost``: what went wrong.
    ``over``: whether the deed came to its end before the operation that was to be struck."""

    points: int = 0
    states: int = 0
    lost: list[str] = field(default_factory=list)
    over: bool = False

    def add(self, other: Tally) -> None:
        self.points += other.points
        self.states += other.states
        self.lost += other.lost


def power(
    worker: Worker,
    deed: str,
    base: Path,
    place: Path,
    *,
    seed: str,
    lots: int,
    plant: str = "",
    how: str = "",
    at: int = 0,
    every: int = 1,
    enough: int = 5,
) -> Tally:
    """Each prefix that ends after ``every`` so many operations. Stops after ``enough`` losses.

    With ``how``, operation ``at`` fails and the process goes on; prefixes that end behind a sync that has
    failed are looked at, if it was one: what such a sync has lost stays lost.
    """
    top = place / "live"
    prepare(deed, base, top)
    # Which file is which is known by their numbers.
    disk = Disk(top)
    tally = Tally()
    done = worker.do(deed, top, plant=plant, how=how, at=at)
    marks: list[str] = []
    judged: dict[bytes, str] = {}
    last = len(done.log)
    first = next((n for n, op in enumerate(done.log) if op.kind == "E"), last + 1) if how else 0
    for number in range(last + 1):
        if number:
            op = done.log[number - 1]
            disk.apply(op)
            if op.kind == "X":
                marks.append(op.name)
        if number < first or (number % every and number != last):
            continue
        said = said_in(marks, None if deed == "make" else "old")
        for choice in choices(f"{seed}/{deed}/{number}", lots):
            tally.points += 1
            fault = _judged(disk, choice, said, place, judged)
            if fault:
                tally.lost.append(f"{deed}, power cut after operation {number}, {choice.name}: {fault}")
        if len(tally.lost) >= enough:
            break
    else:
        _check_complete(disk, top)
    tally.states, tally.over = len(judged), done.count < at
    shutil.rmtree(top)
    return tally


def _judged(disk: Disk, choice: Choice, said: Said, place: Path, judged: dict[bytes, str]) -> str:
    """What is wrong with what the power cut leaves; "" if nothing is. The same state is judged once."""
    tree = disk.after_a_power_cut(choice)
    print_of_it = blake3(said.key().encode())
    for path, content in tree.items():
        print_of_it.update(f"{path}\0{-1 if content is None else len(content)}\0".encode())
        print_of_it.update(content or b"")
    known = print_of_it.digest()
    if known not in judged:
        top = place / "after"
        lay_out(tree, top)
        try:
            judge(top, here(top), said)
            judged[known] = ""
        except Wrong as wrong:
            judged[known] = str(wrong)
        shutil.rmtree(top)
    return judged[known]


def _check_complete(disk: Disk, top: Path) -> None:
    """The model must have been told everything: what it has now is what is there."""
    model = {path: content for path, content in disk.now().items() if not path.endswith("-shm")}
    if model != tree_of(top):
        differ = {path for path in {*model, *tree_of(top)} if model.get(path, 0) != tree_of(top).get(path, 0)}
        raise RuntimeError(f"operations were not seen: {sorted(differ)[:5]} differ from the log")
