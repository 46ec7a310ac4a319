"""The other end of `child`: does a deed in a process that the shim is loaded into, and reads its log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash.deeds import here
from tests.crash.disk import Op, read_log
from tests.crash.judge import Wrong
from tests.crash.shim import built

__all__ = ("Done", "Worker", "a_worker", "pid_file")

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    """``killed``: whether it died as ordered. ``count``: operations up to its end, or to its first error."""

    log: list[Op]
    killed: bool
    count: int
    outcome: str

    @property
    def marks(self) -> list[str]:
        return [op.name for op in self.log if op.kind == "X"]


def pid_file(top: Path) -> Path:
    """Where the child that works in a folder says which process it is."""
    return top.with_suffix(".pid")


class Worker:
    """A process that forks a child for each deed."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        self._running = running

    def do(
        self,
        deed: str,
        top: Path,
        *,
        at: int = 0,
        how: str = "",
        plant: str = "",
        url: str = "",
        goes_on: bool = False,
    ) -> Done:
        """Does ``deed`` in the folder ``top``; with ``goes_on``, or where a call fails, also the next cut.

        Raises Wrong for an error that is not one of the store's.
        """
        log, said = top.with_suffix(".log"), top.with_suffix(".said")
        order = {"deed": deed, "top": str(top), "url": url or here(top), "at": at, "how": how, "plant": plant}
        order |= {"log": str(log), "said": str(said), "pid": str(pid_file(top))}
        order["goes_on"] = goes_on or how not in ("", "kill")
        assert self._running.stdin is not None and self._running.stdout is not None
        print(json.dumps(order), file=self._running.stdin, flush=True)
        status = int(self._running.stdout.readline())
        ops = list(read_log(log)) if log.exists() else []
        log.unlink(missing_ok=True)
        killed = status == -signal.SIGKILL
        answer: dict[str, Any] = (
            {"outcome": "", "count": 0} if killed else json.loads(said.read_text() or "{}")
        )
        said.unlink()
        pid_file(top).unlink(missing_ok=True)
        if status and not killed:
            raise Wrong(f"the child ended with {status}: {answer.get('outcome', 'it hung')}")
        return Done(ops, killed, int(answer["count"]), str(answer["outcome"]))


@contextmanager
def a_worker() -> Iterator[Worker]:
    """One that is ended when this is left."""
    environment = {**os.environ, "LD_PRELOAD": str(built()), "PYTHONDONTWRITEBYTECODE": "1"}
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.child"],
        cwd=_ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with running:
        assert running.stdin is not None and running.stdout is not None
        if running.stdout.readline().strip() != "ready":
            raise RuntimeError("the child did not start")
        yield Worker(running)
        running.stdin.close()
