"""After a crash: what was said to be there is there, bit for bit; all is whole; and the next cut works."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cutline.errors import CheckpointNotFound, CutlineError, NotAStore, StorageError
from cutline.storage import Store, memory_store, open_store
from cutline.storage.rebuild import gather
from tests.crash.deeds import EXPORTS, STATES, Player, answer_of, bits, bits_of, import_it, open_log, resumed
from tests.storage.cast import SYSTEM

__all__ = ("Said", "Wrong", "judge", "said_in")


class Wrong(AssertionError):
    """What a crash must not do."""


@dataclass
class Said:
    """What the marks of a child amount to. ``newest``: the states that may be the newest one, each whole."""

    newest: list[str] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)
    exported: set[str] = field(default_factory=set)
    # Of inputs by number, the last that was said of each; all up to ``forgotten`` may be gone.
    inputs: dict[int, str] = field(default_factory=dict)
    forgotten: int = 0
    # Steps whose answers were returned.
    steps: set[int] = field(default_factory=set)

    def key(self) -> str:
        return f"{self.newest} {sorted(self.exported)} {self.inputs} {self.forgotten} {sorted(self.steps)}"


def said_in(marks: Sequence[str], start: str | None) -> Said:
    """``start``: the state that was the newest before anything was done; None: there was no store."""
    said = Said([start or ""])
    for mark in marks:
        verb, _, what = mark.partition(" ")
        if what.startswith("export "):
            if verb == "said":
                said.exported.add(what.removeprefix("export "))
        elif what.startswith("input "):
            number = int(what.removeprefix("input "))
            if verb == "forget":
                said.forgotten = number
            else:
                said.inputs[number] = verb
        elif what.startswith("step "):
            if verb == "said":
                said.steps.add(int(what.removeprefix("step ")))
        elif verb == "try":
            said.newest.append(what)
        elif verb == "said":
            said.newest = [what]
    return said


def judge(top: Path, url: str, said: Said) -> None:
    """Raises Wrong, with the reason."""
    try:
        _judge(top, url, said)
    except (CutlineError, AssertionError) as error:
        raise Wrong(f"{type(error).__name__}: {error}; could be {said.newest}") from error


def _judge(top: Path, url: str, said: Said) -> None:
    _check_inputs(top, said)
    _check_steps(top, said)
    if "" not in said.newest:
        try:
            open_store(url, create=False).close()
        except NotAStore as error:
            raise Wrong(f"the store is gone: {error}") from error
    with open_store(url, create=True) as store:
        found = _newest(store, said)
        _check_whole(store, found)
        _check_exports(top, said)
        later = time.time() + 40_000.0
        scene = resumed(store, later)
        if store.catalog.undecided(scene.lineage):
            raise Wrong("something stayed undecided")
        row = scene.cut(STATES["final"])
        if bits(store, row) != bits_of("final") or store.newest_whole(SYSTEM) != row:
            raise Wrong("the next cut does not restore")
        # The first writes records that are missing, behind which the second finds what was begun of them.
        for _ in range(2):
            store.sweep(scene.lease, later, keep=1)
        _check_whole(store, "final")
        _check_nothing_left(store)


def _newest(store: Store, said: Said) -> str:
    damage: list[StorageError] = []
    try:
        row = store.newest_whole(SYSTEM, damage=damage)
    except CheckpointNotFound as error:
        if "" in said.newest:
            return ""
        raise Wrong(f"no cut is left: {error}") from error
    if damage:
        raise Wrong(f"damaged: {damage[0]}")
    content = bits(store, row)
    for name in said.newest:
        if name and content == bits_of(name):
            return name
    held = [name for name in STATES if bits_of(name) == content]
    raise Wrong(f"the newest cut is {row}, of state {held}")


def _check_whole(store: Store, newest: str) -> None:
    report = store.verify(SYSTEM)
    if report.faults or report.broken:
        raise Wrong(f"verify: {report.faults or report.broken}")
    for row in store.catalog.checkpoints(SYSTEM):
        content = bits(store, row)
        if not any(content == bits_of(name) for name in STATES):
            raise Wrong(f"{row} restores to something that never was")
    # The catalog may be lost as well, later: the blobs must tell the same.
    told = gather(store.blobs)
    if told.damaged:
        raise Wrong(f"a catalog made again would have a damaged cut: {told.damaged[0]}")


def _check_exports(top: Path, said: Said) -> None:
    for kind, name in EXPORTS.items():
        if kind in said.exported or (top / name).exists():
            with memory_store() as other:
                row = import_it(other, top / name)
                if bits(other, row) != bits_of("old"):
                    raise Wrong(f"the exported {kind} is not what was exported")


def _check_inputs(top: Path, said: Said) -> None:
    """All that was acknowledged is in the log once, in order, nothing that was refused; and it goes on."""
    inputs = dict(said.inputs)
    for turn in range(2 if inputs else 0):
        log = open_log(top)
        records = log.after(log.first - 1)
        found = [number for _, number, _ in records]
        must = [n for n, what in inputs.items() if what == "said" and n > said.forgotten]
        may = {n for n, what in inputs.items() if what != "refused"}
        if found != sorted(set(found)) or not set(must) <= set(found) <= may:
            raise Wrong(f"the log has {found}; {must} were acknowledged, and {sorted(may)} may be there")
        if any(text != f"{number}" * 40 for _, number, text in records):
            raise Wrong("an input is another one than was given")
        inputs[100 + turn] = "said"
        log.append([[100 + turn, f"{100 + turn}" * 40]])
        log.close()


def _check_steps(top: Path, said: Said) -> None:
    """What a step has returned it returns again, and asks nobody; and the next one is stored."""
    known = set(said.steps)
    for epoch in (90, 91) if known else ():
        player = Player(top, epoch)
        steps = [*range(1, max(said.steps) + 1), 90]
        answers = [player.step(number) for number in steps]
        player.capture()
        if answers != [answer_of(number) for number in steps]:
            raise Wrong(f"steps had other answers: {answers}")
        if known & set(player.called):
            raise Wrong(f"the steps {sorted(known & set(player.called))} had returned, and were called again")
        known.update(steps)


def _check_nothing_left(store: Store) -> None:
    rows = store.catalog.checkpoints(SYSTEM)
    living = {key for row in rows for key in (*row.blobs, f"{row.manifest_key}.commit")}
    left = {*store.blobs.list(), *store.blobs.unfinished()} ^ living
    if left:
        raise Wrong(f"after a collection there is too much or too little: {sorted(left)[:3]}")
