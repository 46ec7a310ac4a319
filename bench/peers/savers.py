"""Ways of saving a state that people use, each in a process that holds a state of `bench.peers.held`.

A save is the program's thread's call: what it is blocked for is the stall, and from its beginning until the
files are synced is the time to durable. Whoever only writes is synced and renamed here, as a program that
wants to find a whole file after a loss has to; Orbax and torch sync their files themselves.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.child import Absent, Child, serve
from bench.peers.held import Held, digest_of

__all__ = ("SAVERS", "Saver", "SavingPeer")

# Saves that are kept; older ones are removed, outside of what is timed.
_KEPT = 2


class Saver(ABC):
    """One way of saving; ``shapes`` are the states that it can save."""

    shapes: tuple[str, ...] = ("arrays", "dicts", "chats", "mixed")
    # Seconds of the newest save in which the program's own work was done.
    own_work = 0.0

    def turn(self, held: Held) -> None:
        """Changes the state before a save; not timed."""
        held.change()

    def written(self, place: Path) -> int:
        """Bytes of the newest save."""
        return _bytes_below(place)

    @abstractmethod
    def save(self, state: dict[str, Any], place: Path) -> Callable[[], None]:
        """Blocks for as long as the program is held up; what it returns waits until all is durable."""

    @abstractmethod
    def load(self, state: dict[str, Any], place: Path) -> dict[str, Any]:
        """What was saved. ``state`` is one of the same structure, for those that ask for it."""

    def close(self) -> None:  # noqa: B027  most have started nothing
        """Ends what it started."""


def _done() -> None:
    """Nothing is left to wait for."""


def _synced(place: Path, write: Callable[[Any], None]) -> None:
    """Writes one file, whole or not at all."""
    unfinished = place.with_suffix(".new")
    with open(unfinished, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(place)
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class _Pickle(Saver):
    def save(self, state: dict[str, Any], place: Path) -> Callable[[], None]:
        place.mkdir()
        _synced(place / "state", lambda file: pickle.dump(state, file, 5))
        return _done

    def load(self, state: dict[str, Any], place: Path) -> dict[str, Any]:
        with open(place / "state", "rb") as file:
            found: dict[str, Any] = pickle.load(file)
        return found


class _Cloudpickle(_Pickle):
    def __init__(self) -> None:
        import cloudpickle

        self.dump = cloudpickle.dump

    def save(self, state: dict[str, Any], place: Path) -> Callable[[], None]:
        place.mkdir()
        _synced(place / "state", lambda file: self.dump(state, file))
        return _done


class _NumpySave(Saver):
    shapes = ("arrays",)

    def save(self, state: dict[str, Any], place: Path) -> Callable[[], None]:
        place.mkdir()
        for number, array in enumerate(state["arrays"]):
            with open(place / f"{number}.npy", "wb") as file:
                np.save(file, array)
                file.flush()
                os.fsync(file.fileno())
        _synced(place / "whole", lambda _file: None)
        return _done

    def load(self, state: dict[str, Any], place: Path) -> dict[str, Any]:
        arrays = [np.load(place / f"{number}.npy") for number in range(len(state["arrays"]))]
        return {"arrays": arrays, "table": {}, "chat": []}


class _Orbax(Saver):
    """Orbax saves trees of arrays; texts and tables of a million keys are none."""

    shapes = ("arrays",)

    def __init__(self) -> None:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import orbax.checkpoint as ocp

        self.ocp: Any = ocp
        self.checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())

    def save(self, state: dict[str, Any], place: Path) -> Callable[[], None]:
        self.checkpointer.save(place, args=self.ocp.args.StandardSave({"arrays": state["arrays"]}))
        return self._wait

    def _wait(self) -> None:
        self.checkpointer.wait_until_finished()

    def load(self, state: dict[str, Any], place: Path) -> dict[str, Any]:
        like = {"arrays": state["arrays"]}
        found = self.checkpointer.restore(place, args=self.ocp.args.StandardRestore(like))
        return {"arrays": [np.asarray(array) for array in found["arrays"]], "table": {}, "chat": []}

    def close(self) -> None:
        self.checkpointer.close()


class _Whole:
    """Keeps torch from taking a dict or a list apart into thousands of entries of its own: it is pickled."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Torch(Saver):
    """torch.distributed.checkpoint of tensors that share the arrays' memory; what is no tensor is pickled."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as distributed
        import torch.distributed.checkpoint as dcp

        self.torch: Any = torch
        self.dcp: Any = dcp
        self.distributed: Any = distributed
        # What is saved behind the program's back needs a group, also of one.
        self._store = tempfile.TemporaryDirectory(prefix="cutline-bench-")
        place = f"file://{self._store.name}/group"
        distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)

    def _tensors(self, state: dict[str, Any]) -> dict[str, Any]:
        tensors = {f"array {n}": self.torch.from_numpy(a) for n, a in enumerate(state["arrays"])}
        return {**tensors, "table": _Whole(state["table"]), "chat": _Whole(state["chat"])}

    def save(self, state: dict[str, Any], place: Path) -> Callable[[], None]:
        saved = self.dcp.async_save(self._tensors(state), checkpoint_id=str(place))
        return lambda: saved.result()

    def load(self, state: dict[str, Any], place: Path) -> dict[str, Any]:
        empty = {"arrays": [np.zeros_like(a) for a in state["arrays"]], "table": {}, "chat": []}
        found = self._tensors(empty)
        self.dcp.load(found, checkpoint_id=str(place))
        return {"arrays": empty["arrays"], "table": found["table"].value, "chat": found["chat"].value}

    def close(self) -> None:
        self.distributed.destroy_process_group()
        self._store.cleanup()


class _Kishu(Saver):
    """Kishu commits what the cells of a notebook change; here those of an IPython shell without a front end.

    The change is made in the cell, as Kishu sees nothing else; its time is taken off. Kishu looks at every
    object: a table of 10,000 entries took it 0.6 s a cell, and ours have 200,000. It is given arrays only.
    """

    shapes = ("arrays",)

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cutline-bench-")
        folder = Path(self._folder.name)
        # Its own tests' way of doing without a server of notebooks.
        os.environ.update({"KISHU_PATH_ROOT": str(folder), "HOME": str(folder)})
        os.environ.update({"ENV_KISHU_TEST_MODE": "1", "TEST_NOTEBOOK_PATH": str(folder / "n.ipynb")})
        import nbformat
        from IPython.core.interactiveshell import InteractiveShell
        from kishu.jupyterint import KishuForJupyter
        from kishu.notebook_id import NotebookId

        notebook = nbformat.v4.new_notebook()
        notebook.metadata["kishu"] = {"notebook_id": "bench", "session_count": 1}
        nbformat.write(notebook, folder / "n.ipynb")
        self.shell: Any = InteractiveShell()
        self.kishu: Any = KishuForJupyter(NotebookId("bench", folder / "n.ipynb", "kernel"), self.shell)
        self.kishu.install_kishu_hooks()
        self.database = folder / "n.kishudb"
        self.shell.user_ns["clock"] = time.perf_counter
        self.size = 0

    def turn(self, held: Held) -> None:
        self.shell.user_ns["held"] = held

    def _cell(self, code: str) -> None:
        result = self.shell.run_cell(code, store_history=True)
        result.raise_error()

    def save(self, state: dict[str, Any], place: Path) -> Callable[[], None]:
        place.mkdir()
        before = self.database.stat().st_size
        self._cell("began = clock(); held.change(); changing = clock() - began")
        self.own_work = float(self.shell.user_ns["changing"])
        self.size = self.database.stat().st_size - before
        return _done

    def written(self, place: Path) -> int:
        return self.size

    def load(self, state: dict[str, Any], place: Path) -> dict[str, Any]:
        commit = self.kishu._kishu_graph.head()
        self._cell("held.change()")
        self.kishu.checkout(commit, skip_notebook=True)
        held = self.shell.user_ns["held"]
        return {"arrays": held.arrays, "table": held.table, "chat": held.chat}

    def close(self) -> None:
        self._folder.cleanup()


SAVERS: dict[str, type[Saver]] = {
    "pickle": _Pickle,
    "cloudpickle": _Cloudpickle,
    "numpy_save": _NumpySave,
    "orbax": _Orbax,
    "torch": _Torch,
    "kishu": _Kishu,
}


def _bytes_below(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


@contextmanager
def _saving(name: str, shape: str, scale: float, folder: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    saver = SAVERS[name]()
    held = Held(shape, scale)
    saves: list[Path] = []

    def state() -> dict[str, Any]:
        return {"arrays": held.arrays, "table": held.table, "chat": held.chat}

    def save() -> dict[str, Any]:
        saver.turn(held)
        place = folder / f"save-{len(saves)}"
        saves.append(place)
        began = time.perf_counter()
        wait = saver.save(state(), place)
        stall = time.perf_counter() - began - saver.own_work
        wait()
        durable = time.perf_counter() - began - saver.own_work
        if len(saves) > _KEPT:
            shutil.rmtree(saves[-1 - _KEPT])
        return {"stall": stall, "durable": durable, "written": saver.written(place)}

    def answer(order: str) -> dict[str, Any]:
        if order == "save":
            return save()
        digest = held.digest()
        found = saver.load(state(), saves[-1])
        return {"held": digest, "loaded": digest_of(found["arrays"], found["table"], found["chat"])}

    try:
        yield answer
    finally:
        saver.close()


class SavingPeer:
    """One way of saving at work on one state."""

    def __init__(self, name: str, shape: str, scale: float) -> None:
        self.name = name
        self._folder = tempfile.TemporaryDirectory(prefix="cutline-bench-")
        try:
            self._child = Child("bench.peers.savers", name, shape, str(scale), self._folder.name)
        except Absent:
            self._folder.cleanup()
            raise

    def save(self) -> dict[str, float]:
        """A turn of changes, which is not timed, and a save: seconds of stall and to durable, bytes."""
        return self._child.ask(order="save")

    def check(self) -> str:
        """The digest of what it holds, after it has been found to be what the newest save holds."""
        found = self._child.ask(order="check")
        if found["held"] != found["loaded"]:
            raise AssertionError(f"{self.name} loads something else than was saved")
        return str(found["held"])

    def close(self) -> None:
        """Ends it."""
        self._child.close()
        self._folder.cleanup()


if __name__ == "__main__":
    serve(lambda: _saving(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4])))
