"""Subtle bugs of input, storage and the shell; see `planted`, to whose table they are added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutline.errors import StoreFull
from cutline.participant import failures
from cutline.participant.ingress import IngressLog
from cutline.participant.inputs import InputRunner
from cutline.participant.keys import Keys
from cutline.participant.runner import Runner
from cutline.storage import collect
from cutline.storage.blobs import parts_of
from cutline.storage.directory import DirectoryBlobs

from .disk import SimulatedDisk
from .planted import PLANTED, SIGNS, Patch, planted
from .program import Log

__all__ = ("PLANTED", "SIGNS")


# -- input -----------------------------------------------------------------------------------------------


@planted("input is delivered before it is durable")
def _input_early(patch: Patch) -> None:
    real, after = IngressLog.append, IngressLog.after

    def flush(self: IngressLog) -> None:
        late, self.late = getattr(self, "late", []), []  # type: ignore[attr-defined]
        if late:
            self.last -= len(late)
            real(self, late)

    def append(self: IngressLog, records: Sequence[Any]) -> int:
        flush(self)
        self.late = list(records)  # type: ignore[attr-defined]
        self.last += len(records)
        return self.last

    def read(self: IngressLog, index: int) -> Any:
        flush(self)
        return after(self, index)

    patch.setattr(IngressLog, "append", append)
    patch.setattr(IngressLog, "after", read)


@planted("input is acknowledged without the lease")
def _without_lease(patch: Patch) -> None:
    # One program writes the log, as long as it lives; another one does not ask whether it does.
    patch.setattr(Log, "lock", IngressLog.lock)


@planted("a recovery does not replay the log")
def _no_replay(patch: Patch) -> None:
    patch.setattr(IngressLog, "after", lambda self, index: [])


@planted("a replay begins one record late")
def _replay_late(patch: Patch) -> None:
    real = IngressLog.after
    patch.setattr(IngressLog, "after", lambda self, index: real(self, index + 1))


@planted("a replay begins one record early")
def _replay_early(patch: Patch) -> None:
    real = IngressLog.after
    patch.setattr(IngressLog, "after", lambda self, index: real(self, max(0, index - 1)))


@planted("a full log passes for a written one")
def _full_log(patch: Patch) -> None:
    real = Log.append

    def append(self: Log, records: Any) -> int:
        try:
            return real(self, records)
        except StoreFull:
            self.last += len(records)
            return self.last

    patch.setattr(Log, "append", append)


@planted("the log is cut behind what the newest capture has")
def _cut_too_far(patch: Patch) -> None:
    def forget(self: InputRunner, lineage: str, behind: int) -> None:
        assert self.log is not None
        self.log.forget(self.instance.log_index)

    patch.setattr(InputRunner, "forget_input", forget)


@planted("keys of inputs are not in the cuts")
def _keys_outside(patch: Patch) -> None:
    # They are those of one stay in memory.
    patch.setattr(Keys, "_keys", property(lambda self: self.__dict__.setdefault("outside", {})))


# -- storage ---------------------------------------------------------------------------------------------


# Seconds that a checkpoint takes, mostly.
TAKES = 0.05


@planted("the collector goes by age")
def _by_age(patch: Patch) -> None:
    def dead(state: Any, present: set[str], unfinished: Sequence[str]) -> list[str]:
        living: set[str] = set()
        now = max(max(row.begun_at, row.decided_at or 0.0) for row in state.rows)
        begun = {row.place: row.begun_at for row in state.rows}
        for row in state.rows:
            if row.fate == "committed" and not row.condemned:
                living.update(row.blobs)
        # What was begun longer ago than a checkpoint takes, and is in no cut, is nobody's.
        idle = [*(present - living), *(key for key in unfinished if collect._whole_name(key) not in living)]
        return sorted(
            key
            for key in idle
            if (parts := parts_of(key)) is not None
            and now - begun.get((parts.lineage, parts.checkpoint), 0.0) > TAKES
            and not key.rpartition("/")[2].startswith("manifest")
        )

    patch.setattr(collect, "_dead", dead)


@planted("a folder is synced into its parent once per number")
def _one_number(patch: Patch) -> None:
    def step(self: DirectoryBlobs, path: tuple[str, ...], folder: int, make: bool) -> int:
        if make:
            self._disk.make_folder(path[-1], folder)
        below = self._disk.open_folder(path[-1], folder)
        if make:
            identity: Any = self._disk.identity(below)
            if identity not in self._synced:
                self._disk.sync(folder)
                self._synced.add(identity)
        return below

    patch.setattr(DirectoryBlobs, "_step", step)


@planted("a blob is named before it is synced")
def _unsynced(patch: Patch) -> None:
    real = SimulatedDisk.sync

    def sync(self: SimulatedDisk, fd: int) -> None:
        node = self._open[fd]
        if hasattr(node, "names"):
            real(self, fd)

    patch.setattr(SimulatedDisk, "sync", sync)


# -- the shell -------------------------------------------------------------------------------------------


@planted("a tainted participant goes on")
def _taint_forgotten(patch: Patch) -> None:
    real = failures.report

    def report(runner: Runner, *facts: Any) -> None:
        real(runner, *facts)
        runner.tainted = False

    patch.setattr(failures, "report", report)
