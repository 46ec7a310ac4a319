"""Whatever was damaged: what is read is what was written, or there is an error that has a name."""

from __future__ import annotations

import random
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from cutline.errors import Corrupt, CutlineError, StorageError
from cutline.storage import CheckpointRow, Owner, Store, memory_store, open_store
from cutline.storage.compare import compare
from cutline.storage.export import export_cut
from cutline.storage.importing import import_cut, open_export
from cutline.storage.owners import host_name
from cutline.storage.rebuild import gather
from cutline.storage.repair import rebuild_catalog
from cutline.storage.tending import costs
from tests.fuzz.base import Base, state_of
from tests.fuzz.bomb import EXPLODED
from tests.storage.cast import SYSTEM, Scene, states

__all__ = ("Wrong", "judge_export", "judge_store")

Told = TypeVar("Told")
_PATIENCE = 20
_GHOST = Owner(host_name(), 1 << 30, 0.0, 1, "a test")


class Wrong(AssertionError):
    """What no damage must bring about."""


class _Hangs(BaseException):
    """Something has waited for too long."""


@contextmanager
def _patience() -> Iterator[None]:
    def stop(number: int, frame: Any) -> NoReturn:
        raise _Hangs(f"nothing came of it in {_PATIENCE} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(_PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _named(what: str, work: Callable[[], Told], refusals: list[str]) -> Told | None:
    """What it returns, or None with the error noted. Raises Wrong for an error without a name of ours."""
    try:
        with _patience():
            return work()
    except CutlineError as error:
        refusals.append(f"{what}: {error}")
        return None
    except (_Hangs, Exception) as error:
        raise Wrong(f"{what}: {type(error).__name__}: {error}\n{traceback.format_exc()}") from error


_GOES_ON = {"a": {"x": "goes on"}}
# When the judge does something: later than all that was written before the damage.
_LATE = 1e9


class _Judge:
    """A damaged store, opened. ``single``: nothing but one thing was damaged, so it cannot go unnoticed."""

    def __init__(self, store: Store, base: Base, single: bool, forged: bool) -> None:
        self.store, self.base, self.single, self.forged = store, base, single, forged
        self.refusals: list[str] = []

    def check_state(self, row: CheckpointRow) -> bool:
        """Whether the cut restores; raises Wrong if to something else than what it was."""
        if (row.decided_at or 0.0) >= _LATE and self._is_ours(row):
            return True
        found = _named(f"restoring {row}", lambda: state_of(self.store, row), self.refusals)
        if found is None or self.forged:
            return found is not None
        if row.place not in self.base.states:
            raise Wrong(f"{row} restores and never was")
        if found != self.base.states[row.place]:
            raise Wrong(f"{row} restores to something else")
        return True

    def _is_ours(self, row: CheckpointRow) -> bool:
        """Whether `_go_on` has made it, before a catalog was made again, perhaps with a lost one.s number."""
        return _named(f"reading {row}", lambda: states(self.store, row), []) == _GOES_ON

    def check_rows(self) -> list[CheckpointRow]:
        damage: list[Corrupt] = []
        rows = _named("listing", lambda: self.store.catalog.checkpoints(SYSTEM, damage=damage), self.refusals)
        for row in rows or ():
            if row.place in self.base.rows and row != self.base.rows[row.place] and not self.forged:
                raise Wrong(f"{row} is another row than was written")
            self.check_state(row)
        return rows or []

    def check_newest(self) -> None:
        told: list[StorageError] = []
        row = _named("the newest", lambda: self.store.newest_whole(SYSTEM, damage=told), self.refusals)
        if row is None:
            return
        if not self.check_state(row):
            raise Wrong(f"{row} was said to be whole: {self.refusals[-1]}")
        if self.single and not told and row.place != list(self.base.rows)[-1]:
            raise Wrong(f"{row} is not the newest, and nothing was said about the newer ones")

    def check_verify(self) -> None:
        report = _named("verify", lambda: self.store.verify(SYSTEM), self.refusals)
        if report is None:
            return
        if self.single and len(report.whole) != len(self.base.rows) and not report.faults:
            raise Wrong(f"verify found {len(report.whole)} cuts whole, and nothing wrong")
        for row in self.store.catalog.checkpoints(SYSTEM, damage=[]):
            if row.place in report.whole and not self.check_state(row):
                raise Wrong(f"verify found {row} whole: {self.refusals[-1]}")

    def check_more(self, lot: random.Random, rows: list[CheckpointRow], out: Path) -> None:
        """One of the other things that people do with a store."""
        store = self.store
        what = lot.choice(("costs", "compare", "go on", "gather", "export", "sweep"))
        if what == "costs":
            _named(what, lambda: costs(store, SYSTEM), self.refusals)
        elif what == "compare" and len(rows) > 1:
            _named(what, lambda: compare(store, rows[0], rows[-1]), self.refusals)
        elif what == "gather":
            found = _named(what, lambda: gather(store.blobs), self.refusals)
            for row in found.cuts if found else ():
                self.check_state(row)
        elif what == "export" and rows:
            row = lot.choice(rows)
            if _named(what, lambda: export_cut(store, row, out), self.refusals):
                _check_import(out, self.base, row, self.refusals, self.forged)
        elif what == "sweep":
            whole = [row for row in rows if self.check_state(row)]
            _named(what, lambda: store.sweep(self._lease(), 1e9, keep=10), self.refusals)
            lost = [row for row in whole if not self.check_state(row)]
            if lost:
                raise Wrong(f"a collection has damaged {lost[0]}: {self.refusals[-1]}")
        elif what == "go on":
            _named(what, self._go_on, self.refusals)

    def _lease(self) -> Any:
        return self.store.catalog.acquire_lease(SYSTEM, _GHOST, 10.0, 1e9)

    def _go_on(self) -> None:
        catalog = self.store.catalog
        lease = self._lease()
        lineage = catalog.head_lineage(SYSTEM) or catalog.create_lineage(lease, None)
        scene = Scene(self.store, lease, lineage, epoch=catalog.bump_epoch(lease, lineage))
        row = scene.cut(_GOES_ON, full=True, now=_LATE)
        if states(self.store, row) != _GOES_ON:
            raise Wrong("the next cut restores to something else")


def judge_store(
    top: Path, base: Base, lot: random.Random, *, single: bool, forged: bool = False
) -> list[str]:
    """The errors there were. Raises Wrong. ``forged``: what verifies need not be what was written."""
    EXPLODED.clear()
    refusals: list[str] = []
    store = _named("opening", lambda: open_store(top, create=lot.randrange(2) == 0), refusals)
    if store is not None:
        with closing(store):
            judge = _Judge(store, base, single, forged)
            systems = _named("systems", store.catalog.systems, judge.refusals)
            if single and systems == []:
                raise Wrong("it was taken for a new store")
            rows = judge.check_rows()
            judge.check_newest()
            judge.check_verify()
            judge.check_more(lot, rows, top.with_name("out"))
            refusals += judge.refusals
    if store is None or lot.randrange(4) == 0:
        refusals += _rebuilt(top, base, forged)
    if EXPLODED and not forged:
        raise Wrong(f"somebody has unpickled what did not verify: {EXPLODED}")
    return refusals


def _rebuilt(top: Path, base: Base, forged: bool) -> list[str]:
    """With a catalog made again from the blobs, where that can be done."""
    refusals: list[str] = []
    if _named("rebuilding", lambda: rebuild_catalog(top), refusals) is not None:
        store = _named("opening what was rebuilt", lambda: open_store(top, create=False), refusals)
        if store is None:
            raise Wrong(f"a store whose catalog was made again does not open: {refusals[-1]}")
        with closing(store):
            judge = _Judge(store, base, False, forged)
            rows = _named("listing", lambda: store.catalog.checkpoints(SYSTEM), judge.refusals)
            for row in rows or ():
                judge.check_state(row)
            judge.check_newest()
            refusals += judge.refusals
    return refusals


def judge_export(top: Path, base: Base, *, forged: bool = False) -> list[str]:
    """The same for an export: it comes back as it was, or is refused and nothing is there."""
    EXPLODED.clear()
    refusals: list[str] = []
    row = list(base.rows.values())[-2]
    _check_import(top, base, row, refusals, forged)
    if EXPLODED and not forged:
        raise Wrong(f"somebody has unpickled what did not verify: {EXPLODED}")
    return refusals


def _check_import(top: Path, base: Base, row: CheckpointRow, refusals: list[str], forged: bool) -> None:
    with memory_store() as store:

        def read() -> CheckpointRow:
            return import_cut(store, open_export(top))

        imported = _named("importing", read, refusals)
        if imported is None:
            if store.catalog.systems() or list(store.blobs.list()):
                raise Wrong(f"something was imported in spite of: {refusals[-1]}")
            return
        found = _named("restoring what was imported", lambda: state_of(store, imported), refusals)
        if found is None:
            raise Wrong(f"what was imported does not restore: {refusals[-1]}")
        same = (imported.label, imported.checkpoint, imported.roster) == (
            row.label,
            row.checkpoint,
            row.roster,
        )
        if (found != base.states[row.place] or not same) and not forged:
            raise Wrong("something else was imported than was exported")
