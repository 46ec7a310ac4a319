"""The whole suite as two runs of pytest at once: `python -m tests.halves [options of pytest]`.

The tests wait more than they compute: for processes that start, for locks, for disks. Two runs take little
more than half as long as one. The first has the folders named here; the second has everything else, so a new
folder or module is never left out. What they print comes one after the other; the last line adds both up.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
# About half of the time.
FIRST = ("participant", "barrier", "simulation", "schema", "fuzz", "crash", "storage", "bench", "coordinator")
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|xpassed|deselected|warnings?)")
_NO_TESTS = 5  # pytest's exit status


def halves(root: Path = HERE, first: Sequence[str] = FIRST) -> tuple[list[Path], list[Path]]:
    """What each of the two runs: folders, and modules that lie beside them.

    Raises:
        ValueError: a folder of the first half is not there.
    """
    modules = sorted(root.glob("test_*.py"))
    folders = sorted(each for each in root.iterdir() if each.is_dir() and any(each.rglob("test_*.py")))
    missing = set(first) - {each.name for each in folders}
    if missing:
        raise ValueError(f"no tests in {', '.join(sorted(missing))} of {root.name}: mend FIRST")
    return (
        [each for each in folders if each.name in first],
        modules + [each for each in folders if each.name not in first],
    )


def total(printed: Sequence[str]) -> str:
    """The counts of the last line of each run, added."""
    counts: Counter[str] = Counter()
    for text in printed:
        last = text.strip().rpartition("\n")[2]
        for number, what in _COUNT.findall(last):
            counts[what] += int(number)
    return ", ".join(f"{number} {what}" for what, number in counts.items()) or "nothing ran"


def main(options: Sequence[str], root: Path = HERE, first: Sequence[str] = FIRST) -> int:
    """Runs both; the exit status of the first that failed, else 0. The first half is printed as it runs."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", *options]
    one, other = ([*command, *map(str, half)] for half in halves(root, first))
    with tempfile.TemporaryFile() as kept:
        with (
            subprocess.Popen(other, stdout=kept, stderr=subprocess.STDOUT, cwd=root.parent) as later,
            subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=root.parent) as now,
        ):
            try:
                shown = _shown(now)
                statuses = [now.wait(), later.wait()]
            finally:
                for each in (now, later):
                    if each.poll() is None:
                        each.terminate()
        kept.seek(0)
        printed = kept.read().decode(errors="replace")
    print(printed)
    print(f"both halves: {total((shown, printed))} in {time.monotonic() - began:.0f} s")
    # A selection (-k, -m) may leave one half without tests.
    failed = [status for status in statuses if status not in (0, _NO_TESTS)]
    return failed[0] if failed else min(statuses)


def _shown(running: subprocess.Popen[bytes]) -> str:
    """What it prints, printed as it comes."""
    assert running.stdout is not None
    lines = []
    for line in running.stdout:
        lines.append(line.decode(errors="replace"))
        print(lines[-1], end="", flush=True)
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
