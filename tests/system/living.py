"""What tests of whole systems share: waiting for what can be seen, running programs, finding left-overs."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

import cutline
from cutline.errors import RolledBack

__all__ = (
    "MARK",
    "Program",
    "again",
    "comes_to",
    "kill",
    "left_over",
    "marked",
    "pid_of",
    "recoveries",
    "small_disk",
    "until",
)

# In the environment of everything that a test starts, participants too: the kernel keeps the environment
# a process began with, and a fork inherits it.
MARK = "CUTLINE_TEST_RUN"
ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")
P = TypeVar("P", bound="Program")


def until(found: Callable[[], T], what: str, timeout: float = 20.0) -> T:
    """The first true outcome; fails naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        outcome = found()
        if outcome:
            return outcome
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:.0f} s for: {what}")
        time.sleep(0.01)


def comes_to(found: Callable[[], T], wanted: T, what: str, timeout: float = 20.0) -> None:
    """Waits until the outcome is `wanted`: what comes in parts is not judged by its first part."""
    deadline = time.monotonic() + timeout
    while (outcome := found()) != wanted:
        if time.monotonic() > deadline:
            assert outcome == wanted, f"{timeout:.0f} s for: {what}"
        time.sleep(0.01)


def again(call: Callable[[], T]) -> T:
    """The outcome of a call that a recovery may undo under our hands."""
    while True:
        try:
            return call()
        except RolledBack:
            continue


def pid_of(system: cutline.System, name: str) -> int:
    """The process of a participant that runs."""

    def found() -> int:
        seat = again(system.status)["participants"].get(name, {})
        return int(seat["pid"]) if seat.get("phase") == "running" else 0

    return until(found, f"{name} to run")


def recoveries(system: cutline.System) -> list[dict[str, Any]]:
    """The recoveries from losses that this system has told of."""
    return [notice for notice in list(system.notices) if notice["what"] == "recovered" and notice["causes"]]


def kill(system: cutline.System, *names: str) -> None:
    """Ends participants by SIGKILL and waits until the system has recovered from it."""
    before = len(recoveries(system))
    for pid in [pid_of(system, name) for name in names]:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(recoveries(system)) > before, f"a recovery from the loss of {', '.join(names)}")


def marked(mark: str) -> list[int]:
    """Processes, other than this one, that began with this mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
            if state not in (b"Z", b"X") and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except (OSError, IndexError):
            # It ended while we looked.
            continue
    return found


@contextmanager
def left_over(timeout: float = 10.0) -> Iterator[str]:
    """A mark for what is started inside; at the end nothing of it may live, and nothing stays in /tmp."""
    mark, before = secrets.token_hex(8), os.environ.get(MARK)
    os.environ[MARK] = mark
    try:
        yield mark
        try:
            until(lambda: not marked(mark), "the end of all processes", timeout)
        finally:
            for pid in marked(mark):
                os.kill(pid, signal.SIGKILL)
    finally:
        if before is None:
            del os.environ[MARK]
        else:
            os.environ[MARK] = before


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """A file system of its own at `folder`; skips the test where we may not mount one."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"no file system of its own can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Program:
    """A script of tests/programs that runs; its output is read line by line."""

    def __init__(self, script: str, *arguments: object, **environment: str) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        command: Sequence[str] = [
            sys.executable,
            "-u",
            str(ROOT / "tests" / "programs" / script),
            *map(str, arguments),
        ]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **environment},
            # A shell's background job ignores SIGINT, and so would whatever it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.lines: list[str] = []

    def read_until(self, start: str) -> str:
        """The rest of the first line that begins with `start`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith(start):
                return line[len(start) :].strip()
        raise AssertionError(f"the program ended without {start!r}:\n" + "\n".join(self.lines))

    def last(self, start: str) -> str:
        """The rest of the last line that begins with `start`, of one that has been told to end."""
        assert self.process.stdout is not None
        # What it has said may be far ahead of what was read of it.
        self.lines += [line.rstrip() for line in self.process.stdout]
        return [line[len(start) :].strip() for line in self.lines if line.startswith(start)][-1]

    def end(self, timeout: float = 60.0) -> int:
        """Its exit status, all its output read."""
        assert self.process.stdout is not None
        try:
            rest, _ = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        self.lines += rest.splitlines()
        return self.process.returncode

    def send(self, number: signal.Signals) -> None:
        """A signal to the program alone."""
        self.process.send_signal(number)

    def __enter__(self: P) -> P:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    @property
    def text(self) -> str:
        """All output so far."""
        return "\n".join(self.lines)
