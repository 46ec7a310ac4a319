"""``python -m bench``: measure, and print one line per row, one JSON document, or a report with pictures.

A measurement is a module ``bench/bench_<row>.py`` with a function ``measure() -> bench.row.Row``; the file's
name is the row's name, so that ``--only`` loads nothing else. Where a figure has two targets it returns
a list of rows, that of its name first; what cannot be measured on a machine is a `bench.row.Missing`.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.document import Run, compact, in_order, row_names, save_figures
from bench.merged import merged
from bench.repeated import Repeated
from bench.row import Row
from cutline.storage.authentic import StoreKey
from cutline.storage.keys import ENVIRONMENT

__all__ = ("main",)

Doc = dict[str, Any]


def _line(row: Row) -> str:
    doc, interval = row.to_doc(), row.interval()
    figures = f"{doc['ours']:.4g} against {doc['baseline']:.4g} {doc['unit']}"
    measured = f"{doc['name']}: {row.measured_ratio():.4g} ({interval.low:.4g} to {interval.high:.4g})"
    if row.target is None:
        return f"{measured}; {figures}"
    short = "" if doc["holds"] else ", the measured figure falls short"
    return f"{measured} {doc['target']}: {doc['verdict']}{short}; {figures}"


def _times(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of runs: it must be 1 or more")
    return int(text)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Ratios of Cutline to what it replaces."
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a line per row")
    parser.add_argument("--only", metavar="ROW,...", help="measure these rows only")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer rounds; not every row")
    parser.add_argument("--micro", action="store_true", help="the parts too, each alone (pytest-benchmark)")
    parser.add_argument("--runs", metavar="N", type=_times, default=1, help="measure the rows N times over")
    parser.add_argument("--report", metavar="FOLDER", type=Path, help="write report.md, pictures and figures")
    parser.add_argument("--figures", metavar="FILE", type=Path, help="report these, without measuring")
    parser.add_argument("--with", dest="beside", metavar="FILE", type=Path, help="report these figures too")
    return parser.parse_args(arguments)


def _report(doc: Doc, folder: Path) -> None:
    from bench.report import write_report

    save_figures(doc, folder)
    # The report has the digits that the file has, so that the file gives it again.
    for written in write_report(compact(doc), folder):
        print(f"written: {written.name}", file=sys.stderr)


def _compile_ours() -> None:
    """What the peers import was compiled when it was installed. Here Python would do so at the first import,
    and with PYTHONDONTWRITEBYTECODE in every process that a row starts: twice the time of its imports."""
    for room in ("barrier", "bench", "coordinator", "cutline", "participant", "storage"):
        compileall.compile_dir(str(Path(__file__).parents[1] / room), quiet=2)


def _measure(options: argparse.Namespace, names: Sequence[str], beside: Sequence[Doc]) -> Doc:
    """The document of the rows. With a report, figures.partial.json is written after each module, so that who
    kills the run loses no more than one."""
    runs = Repeated(
        options.runs,
        lambda: Run(
            quick=options.quick, told=lambda row: None if options.json else print(_line(row), flush=True)
        ),
    )

    def saved() -> None:
        if options.report is None:
            return
        try:
            save_figures(merged([*beside, runs.to_doc()]), options.report, partly=True)
        except OSError as error:
            # The rest may yet be measured, and printed.
            print(f"not kept: {error}", file=sys.stderr)

    runs.measure(in_order(names), micro=options.micro, saved=saved)
    for absent in runs.runs[-1].missing:
        print(f"not measured: {absent.name}: {absent.reason}", file=sys.stderr)
    for line in runs.lines() if not options.json else ():
        print(line, flush=True)
    return runs.to_doc()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the rows asked for; 2 if one of that name does not exist, 1 if one ended with an error."""
    options = _options(arguments)
    beside = [json.loads(options.beside.read_text(encoding="utf-8"))] if options.beside is not None else []
    if options.figures is not None:
        doc = json.loads(options.figures.read_text(encoding="utf-8"))
    else:
        known = row_names(Path(__file__).parent)
        wanted = options.only.split(",") if options.only else known
        unknown = sorted(set(wanted) - set(known))
        if unknown:
            print(
                f"no row {', '.join(unknown)}; there are: {', '.join(known) or 'none yet'}", file=sys.stderr
            )
            return 2
        # Whether they go together is better known before an hour of measuring.
        merged([*beside, Run().to_doc()])
        _compile_ours()
        doc = _measure(options, wanted, beside)
    doc = merged([*beside, doc])
    if options.report is not None:
        _report(doc, options.report)
    if options.json:
        print(json.dumps(doc, indent=2))
    return 1 if doc["errors"] else 0


if __name__ == "__main__":
    # The stores go with the run: their keys are not for the user to keep.
    os.environ.setdefault(ENVIRONMENT, StoreKey.new().text)
    sys.exit(main())
