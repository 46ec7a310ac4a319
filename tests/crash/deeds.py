"""What is done while the power goes or the process dies: a store is made, cuts are committed, old ones are
collected, a cut is exported, a cut is imported; inputs are logged and forgotten; steps of a log are made.

The child that does it says before each step what it tries, and after it what has happened. By these marks it
is judged what must be there.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cutline.errors import StorageError
from cutline.participant.ingress import IngressLog
from cutline.participant.log import Log
from cutline.participant.steps import StepLost, Steps
from cutline.storage import CheckpointRow, Image, Owner, Store, memory_store, open_store, read_image
from cutline.storage.collect import IMPORTED
from cutline.storage.export import export_cut
from cutline.storage.importing import import_cut, open_export
from cutline.storage.owners import host_name
from cutline.storage.retention import Policy
from cutline.storage.tending import gc
from tests.storage.cast import SYSTEM, Scene

__all__ = (
    "DEEDS",
    "EXPORTS",
    "STATES",
    "Child",
    "Player",
    "answer_of",
    "bits",
    "bits_of",
    "go_on",
    "here",
    "import_it",
    "make_base",
    "open_log",
    "prepare",
    "resumed",
    "try_it",
)

Text = dict[str, dict[str, str]]

# The states of the system by name. Texts that do not shrink to nothing, so that a pack has bytes to lose.
STATES: dict[str, Text] = {
    name: {
        "a": {"x": "".join(f"{name}{number}" for number in range(120)), "same": "same" * 50},
        "b": {"y": name},
    }
    for name in ("oldest", "older", "old", "new", "newer", "newest", "final", "given", "repaired")
}
EXPORTS = {"file": "exports/cut.export", "folder": "exports/cut.folder"}
_GIVEN = "exports/given"
# An owner on this machine who is dead: whoever comes after him need not wait for his lease to run out.
_GHOST = Owner(host_name(), 1 << 30, 0.0, 1, "a test")


@dataclass
class Child:
    """Who does it, in the folder ``top``. ``mark`` writes a mark; ``store`` is opened when it is needed."""

    top: Path
    url: str
    mark: Callable[[str], None]
    now: float = field(default_factory=time.time)
    _store: list[Store] = field(default_factory=list)

    @property
    def store(self) -> Store:
        if not self._store:
            self._store.append(open_store(self.url, create=True))
        return self._store[0]

    def cut(self, scene: Scene, name: str, *, full: bool = False) -> None:
        self.mark(f"try {name}")
        scene.cut(STATES[name], full=full, now=self.now)
        self.mark(f"said {name}")


def here(top: Path) -> str:
    """The URL of the store in a folder of the tests."""
    return str(top / "store")


def bits(store: Store, row: CheckpointRow) -> dict[str, Any]:
    """Everything that a cut restores to."""
    found = {}
    for name, image in store.read_manifest(row).images.items():
        read = read_image(store.blobs, image.ref)
        regions = {number: bytes(memory) for number, memory in read.regions.items()}
        found[name] = (read.header, read.sections, read.pieces, regions)
    return found


def bits_of(name: str) -> dict[str, Any]:
    """What the cut of a named state must restore to."""
    return {
        participant: (
            {"participant": participant},
            {"mailbox": b""},
            [(key, value.encode()) for key, value in state.items()],
            {1: bytes(4096)},
        )
        for participant, state in STATES[name].items()
    }


def make_base(top: Path, url: str) -> None:
    """A store with three cuts, and an export of another store to be imported."""
    (top / "exports").mkdir(parents=True)
    with open_store(url, create=True) as store:
        scene = resumed(store, time.time())
        for name in ("oldest", "older", "old"):
            # The second builds on the first; the third does not need its packs.
            scene.cut(STATES[name], full=name == "old", label="kept" if name == "oldest" else None)
        store.catalog.release_lease(scene.lease)
    with memory_store() as other:
        row = Scene.new(other).cut(STATES["given"])
        export_cut(other, row, top / _GIVEN)


def resumed(store: Store, now: float) -> Scene:
    """A new owner, as after a crash; what was imported is gone on with as a fork."""
    lease = store.catalog.acquire_lease(SYSTEM, _GHOST, 1000.0, now)
    scene = Scene.resumed(store, now=now, lease=lease)
    if scene.lineage.startswith(IMPORTED):
        return scene.fork(store.newest_whole(SYSTEM))
    return scene


def _commit(child: Child) -> None:
    scene = resumed(child.store, child.now)
    child.cut(scene, "new")
    child.cut(scene, "newer", full=True)


def _collect(child: Child) -> None:
    """A collection while nobody runs, one beside a checkpoint that is being taken, one behind it."""
    gc(child.store, SYSTEM, Policy(1), child.now)
    scene = resumed(child.store, child.now)
    child.mark("try newest")
    checkpoint = scene.begin(False, None, list(STATES["newest"]))
    refs = {name: scene.write(checkpoint, name, state, False) for name, state in STATES["newest"].items()}
    child.store.sweep(scene.lease, child.now, keep=1)
    scene.commit(checkpoint, STATES["newest"], refs, now=child.now)
    child.mark("said newest")
    child.store.sweep(scene.lease, child.now, keep=1)


def _export(child: Child) -> None:
    row = child.store.newest_whole(SYSTEM)
    for kind, name in EXPORTS.items():
        child.mark(f"try export {kind}")
        if not (child.top / name).exists():
            export_cut(child.store, row, child.top / name, folder=kind == "folder")
        child.mark(f"said export {kind}")


def import_it(store: Store, path: Path) -> CheckpointRow:
    # Exported from the memory of another process, whose key went with it.
    return import_cut(store, open_export(path), trust=True)


def _import(child: Child) -> None:
    child.mark("try given")
    import_it(child.store, child.top / _GIVEN)
    child.mark("said given")


def _input(child: Child) -> None:
    """Inputs are logged, in files of a few, and forgotten; the log is opened again on the way."""
    log = open_log(child.top)
    number = 0
    for turn in range(3):
        for _ in range(4):
            number += 1
            _take(child, log, number)
        if turn == 1:
            log.close()
            log = open_log(child.top)
            continue
        # In the end several files at once.
        child.mark(f"forget input {number - 3}")
        with suppress(StorageError):
            # Put off, if it cannot be done.
            log.forget(max(0, log.last - 3))
    log.close()


def _take(child: Child, log: IngressLog, number: int) -> None:
    child.mark(f"try input {number}")
    try:
        log.append([[number, f"{number}" * 40]])
    except StorageError as error:
        # Where it could not be taken back, nobody knows.
        child.mark(f"{'lost' if 'whether that input' in str(error) else 'refused'} input {number}")
        return
    child.mark(f"said input {number}")


def open_log(top: Path) -> IngressLog:
    """The log, whose files have two records or so."""
    return IngressLog(top / "ingress" / "line.log", bytes(32), segment_bytes=200, spent_bytes=100)


class Player:
    """A participant that makes steps since a checkpoint that no other has followed."""

    def __init__(self, top: Path, epoch: int) -> None:
        self.log: Log[str] = Log()
        # What was asked of the world outside.
        self.called: list[int] = []
        self._steps = Steps("player", 1, "line", top / "home", bytes(32))
        self._epoch = epoch
        # All of a desk that steps look at.
        desk: Any = SimpleNamespace(active=None, out=[], next_number=0, live={}, calls={})
        self._steps.attach(desk)
        self._steps.restored(epoch, 0, Image({"lineage": "line"}, {}, []))

    def _ask(self, number: int) -> str:
        self.called.append(number)
        return answer_of(number)

    def step(self, number: int) -> str:
        """The answer to a question, which is asked once."""
        answer: str = self._steps.take(self.log, self._ask, (number,), {})
        return answer

    def capture(self) -> None:
        """What follows goes into another file."""
        self._steps.section(self._epoch)


def answer_of(number: int) -> str:
    return f"{number}" * 40


def _step(child: Child) -> None:
    """Steps are made, in two files, and made again in a newer epoch, with some more behind them."""
    with suppress(StepLost, OSError):
        # Who cannot store a step, or read those that there are, ends.
        for epoch in range(1, 4):
            player = Player(child.top, epoch)
            for number in range(1, 3 * epoch + 1):
                child.mark(f"try step {number}")
                player.step(number)
                child.mark(f"said step {number}")
                if number % 3 == 2:
                    player.capture()
            player.capture()


def _make(child: Child) -> None:
    """A store where there is none."""
    scene = resumed(child.store, child.now)
    child.cut(scene, "new")


DEEDS: dict[str, Callable[[Child], None]] = {
    "commit": _commit,
    "gc": _collect,
    "export": _export,
    "import": _import,
    "make": _make,
    "input": _input,
    "step": _step,
}


def prepare(deed: str, base: Path, top: Path) -> None:
    """The folder in which a deed is done; a store is made where there is none."""
    shutil.copytree(base, top)
    if deed == "make":
        shutil.rmtree(top / "store")


def go_on(child: Child, deed: str) -> None:
    """After an error in the same process: what is undecided is decided, and the next cut works at once."""
    store = child.store
    scene = resumed(store, child.now + 10_000.0)
    assert store.catalog.undecided(scene.lineage) == []
    child.cut(scene, "repaired")
    assert bits(store, store.newest_whole(SYSTEM)) == bits_of("repaired")
    if deed == "export":
        row = next(row for row in store.catalog.checkpoints(SYSTEM) if bits(store, row) == bits_of("old"))
        for kind, name in EXPORTS.items():
            if not (child.top / name).exists():
                export_cut(store, row, child.top / name, folder=kind == "folder")
            child.mark(f"said export {kind}")
    if deed == "import":
        import_it(store, child.top / _GIVEN)
        child.mark("said given")


def try_it(child: Child, deed: str, mended: Callable[[], None]) -> str:
    """Does it; what came of it: "done", or the error that is one of the store's."""
    try:
        DEEDS[deed](child)
    except StorageError as error:
        mended()
        child.mark("failed")
        go_on(child, deed)
        return f"{type(error).__name__}: {error}"
    mended()
    go_on(child, deed)
    return "done"
