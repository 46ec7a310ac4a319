"""A peer in a process of its own, so that what it imports and starts is not in the bench's.

The process takes one JSON document a line on standard input and answers with one a line. What cannot be had
(a package, a server) is said by its first line, and is `Absent` here: the rows of that peer are missing then.
What the peer itself prints goes to standard error, which is shown when the process ends too early.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import IO, Any

__all__ = ("Absent", "Child", "serve")

# How much is shown of what a process said before it ended.
_SAID = 2000


class Absent(Exception):
    """Cannot be measured here; says what there is none of."""


class Child:
    """The process, to be asked one thing after the other."""

    def __init__(self, module: str, *arguments: str, python: str = sys.executable) -> None:
        if shutil.which(python) is None:
            raise Absent(f"no interpreter {python}")
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            first = self.hear()
            if "missing" in first:
                raise Absent(first["missing"])
        except BaseException:
            self.close()
            raise

    def tell(self, **order: Any) -> None:
        """Sends an order; `hear` has the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The answer to the oldest order that has none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(timeout=30)
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")[-_SAID:]
            raise RuntimeError(f"the process {self._process.args!r} ended:\n{said}")
        doc: dict[str, Any] = json.loads(line)
        return doc

    def ask(self, **order: Any) -> dict[str, Any]:
        """Sends an order and waits for its answer."""
        self.tell(**order)
        return self.hear()

    def close(self) -> None:
        """Ends it: it reads to the end of its input, and is killed if that takes too long."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
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
            say(missing=str(error))
            return
        say(ready=True)
        for line in sys.stdin:
            say(**answer(**json.loads(line)))
