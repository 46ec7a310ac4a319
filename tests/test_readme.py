"""What README.md and docs/*.md show is run: programs, their output, and the terminal session with its kills.

* A ``python`` block of README.md is a program of its own; a ``text`` block right after it is its output, to
  the letter. In docs/ this holds for blocks under a line ``<!-- runnable -->``.
* The new side of README's ``diff`` is the program of its ``console`` session. The session is played command
  by command; numbers may differ, the lines shown must come in their order, and more may come between them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SECONDS = 60.0
_FENCE = re.compile(r"^(<!-- runnable -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block; `output` is what a `text` block right after it shows."""

    where: str
    language: str
    text: str
    marked: bool
    output: str | None


def blocks_of(path: Path) -> list[Block]:
    """All fenced blocks of a document, in order."""
    text = path.read_text()
    found = list(_FENCE.finditer(text))
    blocks = []
    for k, match in enumerate(found):
        after = found[k + 1] if k + 1 < len(found) else None
        line = text.count("\n", 0, match.start()) + 1
        follows = after is not None and after[2] == "text" and not text[match.end() : after.start()].strip()
        output = after[3] if after is not None and follows else None
        where = f"{path.relative_to(ROOT)}:{line}"
        blocks.append(Block(where, match[2], match[3], match[1] is not None, output))
    return blocks


README = blocks_of(ROOT / "README.md")
PROGRAMS = [block for block in README if block.language == "python"]
for _path in sorted((ROOT / "docs").rglob("*.md")):
    PROGRAMS += [block for block in blocks_of(_path) if block.language == "python" and block.marked]


def test_every_kind_of_block_is_there() -> None:
    kinds = [block.language for block in README]
    assert kinds.count("diff") == 1 and kinds.count("console") == 1 and kinds.count("python") >= 3


def environment() -> dict[str, str]:
    """Of a program in some folder: it must not take the checkout's folders for modules of its own."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize("block", PROGRAMS, ids=[block.where for block in PROGRAMS])
def test_program(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(block.text)
    ran = subprocess.run(
        [sys.executable, script.name],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert ran.returncode == 0, f"{block.where}: {ran.stderr}"
    if block.output is not None:
        assert ran.stdout == block.output, f"{block.where}\n{ran.stderr}"


# -- the terminal session ------------------------------------------------------------------------


class Command(NamedTuple):
    """One command of the session and the lines that it is shown to cause."""

    line: str
    shown: list[str]


def session() -> list[Command]:
    """The console block, command by command."""
    (block,) = (block for block in README if block.language == "console")
    commands: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append(Command(line[2:], []))
        else:
            commands[-1].shown.append(line)
    return commands


def new_side() -> str:
    """The program that the diff leads to."""
    (block,) = (block for block in README if block.language == "diff")
    kept = [line[1:] for line in block.text.splitlines() if not line.startswith("-")]
    return "\n".join(kept) + "\n"


def pattern(shown: str) -> re.Pattern[str]:
    """A line as the README shows it, with any numbers; a step's number counts."""
    parts = re.split(r"(\d+(?:\.\d+)?)", shown)
    keep = shown.startswith(("step ", "cash "))
    number = r"\d+(?:\.\d+)?"
    return re.compile("".join(number if k % 2 and not keep else re.escape(p) for k, p in enumerate(parts)))


# The reader of the README kills and saves while the program runs. However fast that is, and however slow the
# machine: what follows these lines waits for the kill that the session shows next.
HELD = ("step 20", "step 40")
HOLD = """
import builtins, os, time

def print(*what, real=builtins.print, **how):
    real(*what, **how)
    line = " ".join(map(str, what))
    while line in {held!r} and not os.path.exists(os.path.join({folder!r}, "on from " + line)):
        time.sleep(0.01)

builtins.print = print
"""


class Terminal:
    """Runs programs of the session and waits for their lines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.held = list(HELD)
        self.site = folder / "site"
        self.site.mkdir()
        (self.site / "sitecustomize.py").write_text(HOLD.format(held=HELD, folder=str(folder)))
        self.lines: list[str] = []
        self.seen = 0
        self.news = threading.Condition()
        self.running: subprocess.Popen[str] | None = None

    def start(self, arguments: list[str]) -> subprocess.Popen[str]:
        """A program whose lines of both streams are collected."""
        program = subprocess.Popen(
            arguments,
            cwd=self.folder,
            env={**environment(), "PYTHONPATH": str(self.site)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._collect, args=(program,), daemon=True).start()
        return program

    def _collect(self, program: subprocess.Popen[str]) -> None:
        assert program.stdout is not None
        for line in program.stdout:
            with self.news:
                self.lines.append(line.rstrip("\n"))
                self.news.notify_all()
        program.stdout.close()

    def expect(self, shown: str) -> str:
        """The next line that looks like the one the README shows; lines between are passed over."""
        wanted, until = pattern(shown), time.monotonic() + SECONDS
        with self.news:
            while True:
                for k in range(self.seen, len(self.lines)):
                    if wanted.fullmatch(self.lines[k]):
                        self.seen = k + 1
                        return self.lines[k]
                left = until - time.monotonic()
                assert left > 0, f"no line like {shown!r}; came: {self.lines}"
                self.news.wait(left)

    def play(self, command: Command) -> None:
        """One command and the lines it is shown to cause."""
        words = command.line.split()
        if words[0] == "kill":
            self.kill(words[-1])
        elif words[0] == "python":
            program = self.start([sys.executable, "-u", *words[1:2]])
            if words[-1] == "&":
                self.running = program
            else:
                assert program.wait(timeout=SECONDS) == 0, self.lines
        else:
            ran = self.start([str(Path(sys.executable).parent / words[0]), *words[1:]])
            assert ran.wait(timeout=SECONDS) == 0, self.lines
        for shown in command.shown:
            self.expect(shown)

    def kill(self, whom: str) -> None:
        """SIGKILL for the program itself (`%1`), or for the participant whose process it has named."""
        assert self.running is not None
        if whom == "%1":
            self.running.kill()
            self.running.wait(timeout=SECONDS)
        else:
            (named,) = (line for line in self.lines if line.startswith("t3 is process "))
            os.kill(int(named.split()[-1]), signal.SIGKILL)
        (self.folder / f"on from {self.held.pop(0)}").touch()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A folder with the diff's program; what still runs at the end is ended."""
    (tmp_path / "app.py").write_text(new_side())
    shell = Terminal(tmp_path)
    yield shell
    if shell.running is not None and shell.running.poll() is None:
        shell.running.kill()
        shell.running.wait(timeout=SECONDS)


def test_session(terminal: Terminal) -> None:
    commands = session()
    assert [command.line.split()[0] for command in commands].count("kill") == 2
    for command in commands:
        terminal.play(command)
