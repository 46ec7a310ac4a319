"""``python -m bench.profiled ROW ...``: where the processor time of rows goes, a text per row.

The sampling profiler py-spy looks at every process of the run from outside and without stopping it, so what
it shows is the product as it is, but for some looks that come to nothing. A row's figures are not to be
taken from such a run.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.document import row_names
from bench.limits import kill_group
from bench.quick import QUICK
from bench.stacks import processes, table

__all__ = ("main", "profile")

RATE = 100
# Seconds for a row. The longest takes a quarter of an hour, and the profiler slows it down.
PATIENCE = 3600.0


def _ended(command: list[str], row: str, patience: float) -> tuple[int, str]:
    """A command's status and what it said. One that hangs is ended, with all that it has started."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{row}: its run under py-spy has not ended in {patience:g} s") from error
        finally:
            if process.poll() is None:
                kill_group(process)
    return process.returncode, said


def profile(row: str, *, quick: bool, rate: int = RATE, patience: float = PATIENCE) -> str:
    """Measure ``row`` under the profiler, ``rate`` samples a second; the text.

    Raises:
        FileNotFoundError: there is no py-spy.
        RuntimeError: the row or the profiler ended with an error, or not at all.
    """
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if spy is None:
        raise FileNotFoundError("profiles need py-spy: `pip install py-spy`, then run this again")
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        stacks = Path(folder) / "stacks"
        command = [sys.executable, "-m", "bench", "--only", row, *(["--quick"] if quick else [])]
        # A process of Ray's that is stopped for each look does not come up, and the run does not end.
        record = [spy, "record", "--nonblocking", "--rate", str(rate), "--subprocesses"]
        form = ["--function", "--full-filenames", "--format", "raw", "--output", str(stacks)]
        status, said = _ended([*record, *form, "--", *command], row, patience)
        if status != 0 or not stacks.exists():
            raise RuntimeError(f"{row}: no profile was taken; the end of what was said:\n{said[-2000:]}")
        found = processes(stacks.read_text(encoding="utf-8").splitlines(), started="bench")
    size = "a quick run" if quick else "a full run"
    return (
        f"# {row}: where its processor time goes\n\n"
        f"`python -m bench.profiled {row}`, {size}: {rate} samples a second of each thread that is not\n"
        "asleep: it computes, waits for the interpreter, or is within a call of the system. Per cent of the\n"
        "process's samples: the function itself, and with all that it calls.\n\n" + table(found)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile the rows asked for; 2 if one of that name does not exist."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.profiled", description="Where the processor time of rows goes."
    )
    parser.add_argument("rows", metavar="ROW", nargs="+")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds")
    parser.add_argument("--into", metavar="FOLDER", type=Path, help="write ROW.txt there instead of printing")
    options = parser.parse_args(arguments)
    known = QUICK if options.quick else row_names(Path(__file__).parent)
    unknown = sorted(set(options.rows) - set(known))
    if unknown:
        print(f"no row {', '.join(unknown)}; there are: {', '.join(sorted(known))}", file=sys.stderr)
        return 2
    for row in options.rows:
        text = profile(row, quick=options.quick)
        if options.into is None:
            print(text)
        else:
            options.into.mkdir(parents=True, exist_ok=True)
            (options.into / f"{row}.txt").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
