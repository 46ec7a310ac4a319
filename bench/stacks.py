"""Sampled stacks as a table that a person reads: which process, which function, what share of its samples.

The samples are lines of collapsed stacks (B. Gregg's format: frames from the outermost in, joined by `;`, and
a count), as `py-spy record --format raw --subprocesses --function` writes them.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePath

__all__ = ("Process", "processes", "table")

_PROCESS = re.compile(r'process (\d+):"(.*?)"(?=;|$)')
_LINE = re.compile(r"(.*) (\d+)$")
_FRAME = re.compile(r"(.*) \((.*)\)$")
_IMPORTING = "frozen importlib"
_ROOTS = ("site-packages/", "/bench/", "/barrier/", "/participant/", "/coordinator/", "/storage/")
_PYTHON = re.compile(r".*/lib/python3\.\d+/")


@dataclass
class Process:
    """What one process was seen doing: samples by function, alone (``own``), with its callees (``all``)."""

    role: str
    samples: int = 0
    importing: int = 0
    own: Counter[str] = field(default_factory=Counter)
    all: Counter[str] = field(default_factory=Counter)

    def add(self, frames: list[str], count: int) -> None:
        """One stack, ``frames`` from the outermost in, seen ``count`` times."""
        self.samples += count
        if any(_IMPORTING in frame for frame in frames):
            self.importing += count
            return
        names = [_named(frame) for frame in frames]
        self.own[names[-1] if names else "(no Python frame)"] += count
        # A function that calls itself is on the stack several times, and had this sample once.
        self.all.update(dict.fromkeys(names, count))


def _named(frame: str) -> str:
    """``function (path/file.py)``, the path from the package on: what is before it is this machine's."""
    found = _FRAME.match(frame)
    if found is None:
        return frame
    function, path = found.groups()
    for root in _ROOTS:
        before, mark, after = path.rpartition(root)
        if mark:
            kept = after if root == "site-packages/" else f"{PurePath(root).name}/{after}"
            return f"{function} ({kept})"
    return f"{function} ({_PYTHON.sub('', path) if _PYTHON.match(path) else PurePath(path).name})"


def _role(command: str) -> str:
    """What a process is, of its command line: the module it runs and the next word, without paths."""
    try:
        words = shlex.split(command)
    except ValueError:
        # The profiler cuts long command lines, within quotes too.
        words = command.split()
    if "-m" in words[:-1]:
        words = words[words.index("-m") + 1 :]
    kept = [word for word in words[:2] if "/" not in word and not word.startswith("-")]
    return " ".join(kept) or PurePath(words[0] if words else "unknown").name


def processes(lines: Iterable[str], started: str = "unknown") -> list[Process]:
    """Each process of ``lines``, that with the most samples first.

    ``started``: the role of the one that the profiler started, which it may have looked at too early to know
    its command.

    Raises:
        ValueError: a line is not a collapsed stack with its process.
    """
    found: dict[str, Process] = {}
    for line in lines:
        parts = _LINE.match(line.rstrip("\n"))
        named = list(_PROCESS.finditer(parts.group(1))) if parts is not None else []
        if parts is None or not named:
            raise ValueError(f"not a sampled stack of a process: {line[:120]!r}; record with --subprocesses")
        stack, count = parts.groups()
        inner = named[-1]
        role = _role(inner.group(2)) if inner.group(2) or len(named) > 1 else started
        process = found.setdefault(inner.group(1), Process(role))
        process.add([frame for frame in stack[inner.end() :].split(";") if frame], int(count))
    return sorted(found.values(), key=lambda each: -each.samples)


def table(found: Iterable[Process], *, functions: int = 25, least: float = 0.02) -> str:
    """Processes with at least ``least`` of all samples, each with its ``functions`` by their own share."""
    every = list(found)
    total = sum(process.samples for process in every)
    lines = []
    left: dict[str, int] = defaultdict(int)
    for process in every:
        if process.samples < least * total:
            left[process.role] += process.samples
            continue
        share = 100 * process.importing / process.samples
        lines += [f"## {process.role}: {process.samples} samples, {share:.0f} % of them importing", ""]
        lines += ["  own   all  function"]
        for name, own in process.own.most_common(functions):
            lines.append(f"{_percent(own, process)} {_percent(process.all[name], process)}  {name}")
        lines.append("")
    lines += [f"(fewer samples: {role}, {count})" for role, count in sorted(left.items())]
    return "\n".join(lines).rstrip() + "\n"


def _percent(count: int, process: Process) -> str:
    return f"{100 * count / process.samples:5.1f}"
