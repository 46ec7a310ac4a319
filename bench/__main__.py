"""``python -m bench [--json] [--only ROW,...]``: measure, and print one line per row or one JSON document.

A measurement is a module ``bench/bench_<row>.py`` with a function ``measure() -> bench.row.Row``; the file's
name is the row's name, so that ``--only`` loads nothing else. Where a figure has two targets it returns
a list of rows, that of its name first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from bench.row import Row
from cutline.storage.authentic import StoreKey
from cutline.storage.keys import ENVIRONMENT

__all__ = ("main", "row_names")


def row_names(folder: Path) -> list[str]:
    """The rows that can be measured, by the modules that are there."""
    return sorted(path.stem.removeprefix("bench_") for path in folder.glob("bench_*.py"))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _machine() -> dict[str, Any]:
    """What the figures were measured on, and how busy it was by then."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load": list(os.getloadavg()),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in ("grpcio", "msgpack", "numpy")},
    }


def _line(row: Row) -> str:
    doc = row.to_doc()
    verdict = "holds" if doc["holds"] else "FALLS SHORT"
    figures = f"{doc['ours']:.4g} against {doc['baseline']:.4g} {doc['unit']}"
    return f"{doc['name']}: {doc['ratio']:.4g} ({doc['target']}) {verdict}; {figures}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows asked for; 2 if one of that name does not exist."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Ratios of Cutline to what it replaces."
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a line per row")
    parser.add_argument("--only", metavar="ROW,...", help="measure these rows only")
    options = parser.parse_args(arguments)
    known = row_names(Path(__file__).parent)
    wanted = options.only.split(",") if options.only else known
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        print(f"no row {', '.join(unknown)}; there are: {', '.join(known) or 'none yet'}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    for name in wanted:
        with redirect_stdout(sys.stderr):
            # Ray prints of processes that die, on the standard output, which is the document's.
            found: Row | list[Row] = import_module(f"bench.bench_{name}").measure()
        for row in found if isinstance(found, list) else [found]:
            rows.append(row)
            if not options.json:
                print(_line(row), flush=True)
    if options.json:
        print(json.dumps({"machine": _machine(), "rows": [row.to_doc() for row in rows]}, indent=2))
    elif not known:
        print("no rows yet: add bench/bench_<row>.py")
    return 0


if __name__ == "__main__":
    # The stores go with the run: their keys are not for the user to keep.
    os.environ.setdefault(ENVIRONMENT, StoreKey.new().text)
    sys.exit(main())
