"""The whole suite as a few runs of pytest, three at once: `python -m tests.parts [options of pytest]`.

The tests wait more than they compute: for processes that start, for locks, for disks. Each part is a run of
pytest of its own over the folders that it names; whatever no part names is in one more, so a new folder or
module is never left out. A part that has ended makes room for the next, the longest first. What a part prints
comes when it ends; the last line adds all of them up.

The bytecode of the project is written first: where `PYTHONDONTWRITEBYTECODE` is set, each of the thousands of
processes that the tests start would compile the product anew, which takes as long as all else in its start.
"""

from __future__ import annotations

import compileall
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

HERE = Path(__file__).parent
AT_ONCE = 3
# The longest first. REST has what no part names too. All that starts a Ray is in it: one may run at a time.
REST = "ray"
PARTS: tuple[tuple[str, ...], ...] = (
    ("simulation",),
    ("system",),
    (REST,),
    ("participant",),
    ("storage", "schema"),
    ("coordinator", "bench"),
    ("barrier", "crash", "fuzz", "mutate"),
)
_PRODUCT = ("barrier", "coordinator", "participant", "storage")
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|xpassed|deselected|warnings?)")
_CLOSING = re.compile(r"(\d+ [a-z]+|no tests ran).* in [\d.]+s")
_NO_TESTS = 5  # pytest's exit status
_LOST = 70  # ours: a part ended without its closing line
_LOOK = 0.1


def parts(root: Path = HERE, named: Sequence[Sequence[str]] = PARTS, rest: str = REST) -> list[list[Path]]:
    """What each run is given: folders, and for the part of `rest` the modules that lie beside them.

    Raises:
        ValueError: a folder that is named is not there, is named twice, or `rest` is not named.
    """
    found = [each for each in sorted(root.iterdir()) if each.is_dir() and any(each.rglob("test_*.py"))]
    folders = {each.name: each for each in found}
    names = [name for part in named for name in part]
    wrong = sorted(set(names) - folders.keys()) or sorted(name for name in names if names.count(name) > 1)
    if wrong or rest not in names:
        raise ValueError(f"no tests in {', '.join(wrong or [rest])} of {root.name}, or twice: mend PARTS")
    others = [each for name, each in folders.items() if name not in names]
    beside = sorted(root.glob("test_*.py"))
    return [[folders[name] for name in part] + (others + beside if rest in part else []) for part in named]


def total(printed: Sequence[str]) -> str:
    """The counts of the last line of each run, added."""
    counts: Counter[str] = Counter()
    for text in printed:
        for number, what in _COUNT.findall(_last(text)):
            counts[what] += int(number)
    return ", ".join(f"{number} {what}" for what, number in counts.items()) or "nothing ran"


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def status_of(status: int, printed: str) -> int:
    """The exit status of a part; one that does not close as pytest does was lost, whatever it says."""
    return status or (0 if _CLOSING.search(_last(printed)) else _LOST)


class _Run:
    """One run of pytest; what it prints is kept."""

    def __init__(self, given: Sequence[Path], options: Sequence[str], kept: IO[bytes], root: Path) -> None:
        self.name = " ".join(each.stem for each in given)
        self.kept = kept
        self.began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", *options, *map(str, given)]
        self.process = subprocess.Popen(command, stdout=kept, stderr=subprocess.STDOUT, cwd=root.parent)

    def ended(self) -> tuple[int, str]:
        """Its exit status and what it printed, which is shown."""
        self.kept.seek(0)
        text = self.kept.read().decode(errors="replace")
        status = status_of(self.process.returncode, text)
        print(f"== {self.name}: {time.monotonic() - self.began:.0f} s, exit status {status}")
        print(text, flush=True)
        return status, text


def _run_all(given: Sequence[list[Path]], options: Sequence[str], root: Path) -> Iterator[tuple[int, str]]:
    """Runs all of them, AT_ONCE at a time; of each what it came to, as it ends."""
    waiting, running = list(given), list[_Run]()
    with ExitStack() as files:
        try:
            while waiting or running:
                while waiting and len(running) < AT_ONCE:
                    kept = files.enter_context(tempfile.TemporaryFile())
                    running.append(_Run(waiting.pop(0), options, kept, root))
                for each in [each for each in running if each.process.poll() is not None]:
                    running.remove(each)
                    yield each.ended()
                time.sleep(_LOOK)
        finally:
            for each in running:
                each.process.terminate()
                each.process.wait()


def main(
    options: Sequence[str], root: Path = HERE, named: Sequence[Sequence[str]] = PARTS, rest: str = REST
) -> int:
    """Runs all parts; the exit status of one that failed, else 0."""
    began = time.monotonic()
    given = parts(root, named, rest)
    came = list(_run_all(given, options, root))
    print(f"all {len(came)} parts: {total([text for _, text in came])} in {time.monotonic() - began:.0f} s")
    # A selection (-k, -m) may leave a part without tests.
    failed = [status for status, _ in came if status not in (0, _NO_TESTS)]
    if failed:
        return failed[0] if failed[0] > 0 else 128 - failed[0]
    return min(status for status, _ in came)


def compile_product(root: Path = HERE.parent) -> None:
    """Writes the bytecode of what each participant, coordinator and command imports; what is fresh stays."""
    for name in _PRODUCT:
        compileall.compile_dir(root / name, quiet=2, workers=os.cpu_count() or 1)
    for module in (root / "cutline").glob("*.py"):
        compileall.compile_file(module, quiet=2)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    compile_product()
    sys.exit(main(sys.argv[1:]))
