"""A run of the bench as one document: the machine, the rows, what is missing and what ended with an error."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.bench_same_vs_same import GROUP as NOISE
from bench.packages import versions_of
from bench.quick import QUICK
from bench.reasons import reason_of
from bench.row import NOT_IN_QUICK, Failed, Missing, Row

__all__ = ("Run", "compact", "in_order", "machine", "row_names", "save_figures")

_SAME = "same_vs_same"
_DIGITS = 5
_INTERRUPTED = "the run was interrupted before it ended"
_NOT_YET = "the run had not come to it when this was written"


def row_names(folder: Path) -> list[str]:
    """The rows that can be measured, by the modules that are there."""
    return sorted(path.stem.removeprefix("bench_") for path in folder.glob("bench_*.py"))


def in_order(names: Sequence[str]) -> list[str]:
    """The order of measuring: the baseline against itself before all others, and once more after them."""
    if _SAME not in names:
        return list(names)
    others = [name for name in names if name != _SAME]
    return [_SAME, *others, _SAME] if others else [_SAME]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def machine(rows: Sequence[str] = ()) -> dict[str, Any]:
    """What the figures were measured on, and how busy it was by then; nothing that names it.

    ``rows``: those that were measured, for the packages of their peers.
    """
    return {
        "system": platform.platform(),
        "kernel": platform.release(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load": list(os.getloadavg()),
        "python": platform.python_version(),
        "packages": versions_of(rows),
    }


@dataclass
class Run:
    """Takes measurements and keeps what they found. ``told`` hears of each row as it is there.

    ``measured`` are the modules that came to their end, ``seconds`` what each took, also one that did not.
    """

    quick: bool = False
    told: Callable[[Row], object] = lambda _row: None
    rows: list[Row] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    errors: list[Missing] = field(default_factory=list)
    measured: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    micro: list[dict[str, Any]] = field(default_factory=list)
    _left: list[str] = field(default_factory=list)
    _load: tuple[float, float, float] = field(default_factory=os.getloadavg)

    def measure_all(self, names: Sequence[str], saved: Callable[[], object] = lambda: None) -> bool:
        """One after the other; ``saved`` is called after each, so that who writes the document keeps it.

        An interrupt ends it: the rest is missing, and what was found is kept.
        """
        for place, name in enumerate(names):
            self._left = list(dict.fromkeys(names[place + 1 :]))
            try:
                self.measure(name)
                saved()
            except KeyboardInterrupt:
                rest = dict.fromkeys(names[place:])
                self._left = []
                self.measured = [each for each in self.measured if each not in rest]
                self.missing += [Missing(each, _INTERRUPTED) for each in rest]
                return False
        return True

    def measure(self, name: str) -> None:
        """One module's rows. One that ends with an error is named, and does not end the run."""
        settings: dict[str, Any] = {}
        if self.quick:
            if name not in QUICK:
                self.missing.append(Missing(name, NOT_IN_QUICK))
                return
            settings = dict(QUICK[name])
        if any(row.group == NOISE for row in self.rows) and name == _SAME:
            settings["suffix"] = "_after"
        began = time.monotonic()
        try:
            # Ray prints of processes that die, on the standard output, which is the document's.
            with redirect_stdout(sys.stderr):
                found = import_module(f"bench.bench_{name}").measure(**settings)
        except Exception as error:
            traceback.print_exc()
            self.errors.append(Missing(name, reason_of(error)))
            return
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began
        self.measured += [name] if name not in self.measured else []
        for each in found if isinstance(found, list) else [found]:
            if isinstance(each, Missing):
                (self.errors if isinstance(each, Failed) else self.missing).append(each)
            else:
                self.rows.append(each)
                self.told(each)

    def measure_micro(self) -> None:
        """The parts alone, by pytest-benchmark in a process of its own."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
            file = Path(folder) / "micro.json"
            command = [sys.executable, "-m", "pytest", "-q", "bench/micro", f"--benchmark-json={file}"]
            try:
                done = subprocess.run(command, stdout=sys.stderr, cwd=Path(__file__).parents[1])
            except KeyboardInterrupt:
                self.missing.append(Missing("micro", _INTERRUPTED))
                return
            if done.returncode != 0:
                self.errors.append(Missing("micro", f"pytest ended with status {done.returncode}"))
                return
            measured = json.loads(file.read_text(encoding="utf-8"))["benchmarks"]
        self.seconds["micro"] = time.monotonic() - began
        self.micro = [
            {
                "name": each["name"].removeprefix("test_"),
                "what": each["extra_info"]["what"],
                **{key: each["stats"][key] for key in ("median", "q1", "q3", "rounds")},
            }
            for each in measured
        ]

    def to_doc(self) -> dict[str, Any]:
        """The document; ``machine`` and ``rows`` are what other programs read."""
        missing = [*self.missing, *(Missing(name, _NOT_YET) for name in self._left)]
        return {
            "machine": {**machine([row.name for row in self.rows]), "load_before": list(self._load)},
            "rows": [row.to_doc() for row in self.rows],
            "missing": [{"name": each.name, "reason": each.reason} for each in missing],
            "errors": [{"name": each.name, "reason": each.reason} for each in self.errors],
            "micro": self.micro,
            "quick": self.quick,
            "measured": [name for name in self.measured if name not in self._left],
            "seconds": self.seconds,
        }


def compact(document: Any) -> Any:
    """The document with all numbers to five digits, so that its file stays small."""
    if isinstance(document, dict):
        return {key: compact(value) for key, value in document.items()}
    if isinstance(document, list):
        return [compact(value) for value in document]
    return float(f"{document:.{_DIGITS}g}") if isinstance(document, float) else document


def save_figures(document: Any, folder: Path, *, partly: bool = False) -> None:
    """Writes the document to ``figures.json`` of a folder, which is made: all of it or nothing.

    ``partly``: of a run under way, beside what is there; gone when the whole one is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "figures.partial.json"
    partial.write_text(json.dumps(compact(document)) + "\n", encoding="utf-8")
    if not partly:
        partial.replace(folder / "figures.json")
