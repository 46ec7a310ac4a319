"""A peer in a process of its own, so that what it imports and starts is not in the bench's.

The process takes one JSON document a line on standard input and answers with one a line. What cannot be had
(a package, a server) is said by its first line, and is `Absent` here: the rows of that peer are missing then.
What the peer itself prints goes to standard error, which is shown when the process ends too early.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import IO, Any

from bench.limits import PATIENCE, kill_group
from bench.reasons import first_line

__all__ = ("Absent", "Child", "serve")

# How much is shown of what a process said before it ended.
_SAID = 2000


class Absent(Exception):
    """Cannot be measured here; says what there is none of."""


class Child:
    """The process, to be asked one thing after the other. ``ready`` is what it said first.

    Who has not answered after ``patience`` seconds is ended, with all that it has started.
    """

    def __init__(
        self, module: str, *arguments: str, python: str = sys.executable, patience: float = PATIENCE
    ) -> None:
        if shutil.which(python) is None:
            raise Absent(f"no interpreter {python}")
        self._name = " ".join((module, *arguments))
        self.patience = patience
        self._asked = "to start"
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        # A pipe's reading has no time limit, a queue's has.
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.ready = self.hear()
            if "missing" in self.ready:
                raise Absent(self.ready["missing"])
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def tell(self, **order: Any) -> None:
        """Sends an order; `hear` has the answer."""
        assert self._process.stdin is not None
        self._asked = json.dumps(order)
        self._process.stdin.write(self._asked + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The answer to the oldest order that has none.

        Raises:
            TimeoutError: it does not come; the process is ended.
            RuntimeError: the process has ended.
        """
        try:
            line = self._lines.get(timeout=self.patience)
        except queue.Empty:
            kill_group(self._process)
            raise TimeoutError(
                f"{self._name} was asked {self._asked} and has not answered in {self.patience:g} s"
            ) from None
        if not line:
            self._process.wait(timeout=30)
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")[-_SAID:]
            raise RuntimeError(f"{self._name}, which was asked {self._asked}, ended:\n{said}")
        doc: dict[str, Any] = json.loads(line)
        return doc

    def ask(self, **order: Any) -> dict[str, Any]:
        """Sends an order and waits for its answer."""
        self.tell(**order)
        return self.hear()

    def close(self) -> None:
        """Ends it: it reads to the end of its input, and is killed if that takes too long."""
        assert self._process.stdin is not None and self._process.stdout is not None
        # An order that nobody is there to read any more is lost with it.
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            kill_group(self._process)
        self._reader.join(timeout=10)
        # Whoever it has left behind may hold the pipe, and closing would wait for the reader.
        if not self._reader.is_alive():
            self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(opened: Callable[[], AbstractContextManager[Callable[..., dict[str, Any]]]]) -> None:
    """The process's side: ``opened()`` imports and starts the peer and gives what answers each order.

    An `ImportError` or `Absent` of the opening is told to the other side; any other error ends the process.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**doc: Any) -> None:
        answers.write(json.dumps(doc) + "\n")
        answers.flush()

    with ExitStack() as stack:
        try:
            answer = stack.enter_context(opened())
        except (ImportError, Absent) as error:
            say(missing=first_line(error))
            return
        say(ready=True)
        for line in sys.stdin:
            say(**answer(**json.loads(line)))
