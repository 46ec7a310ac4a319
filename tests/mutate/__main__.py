"""Turns every condition of barrier/ round, leaves out every statement, one at a time: do the tests notice?

::

    python -m tests.mutate [--only channel.py] [--all]

Two lines for every survivor, with its reason from survivors.txt, and at the end ``killed K of N (P %)``. The
exit code is 0 if at least 90 % were killed, every survivor has a reason, and every reason a survivor.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

from .forks import Session, Verdict
from .reasons import read_reasons

GOAL = 90
SURVIVORS = Path(__file__).parent / "survivors.txt"
# The last resort is a few random schedules. Those that hunt planted bugs would take the mutant for the bug.
HUNTS = ("planted_bug", "oracle_needs_no_check", "schedules_met")
TESTS = ["tests/barrier", "-k", " and ".join(f"not {hunt}" for hunt in HUNTS)]
# The tests' own progress would drown the survivors, and no failure of an earlier run may play a part.
QUIET = ["-s", "--noconftest", "-pno:terminal", "-pno:cacheprovider", "-pno:benchmark"]


def options_of(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutate", description="Mutants of a package against its tests."
    )
    parser.add_argument("--only", action="append", default=[], metavar="MODULE.py", help="of this module")
    parser.add_argument("--all", action="store_true", help="also a line for each mutant that is killed")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--package", default="cutline.barrier", help="what is mutated")
    parser.add_argument("--survivors", type=Path, default=SURVIVORS, help="the file of reasons")
    parser.add_argument("tests", nargs="*", default=TESTS, help="arguments of pytest, after a --")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """The whole run; the exit code."""
    options = options_of(arguments)
    reasons = read_reasons(options.survivors)
    verdicts: list[Verdict] = []

    def report(verdict: Verdict) -> None:
        verdicts.append(verdict)
        if options.all or not verdict.killer:
            print(f"{verdict.mutant.place}\n    {outcome(verdict, reasons)}", flush=True)

    os.environ["CUTLINE_TEST_SCHEDULES"] = "100"
    session = Session(options.package, options.only, options.workers, report)
    pytest.main([*QUIET, *options.tests], plugins=[session])
    if session.trouble:
        print(session.trouble)
        return 2
    return summary(verdicts, reasons, options.only)


def outcome(verdict: Verdict, reasons: dict[str, str]) -> str:
    """What became of a mutant, and where it is."""
    line = f"line {verdict.mutant.line}:"
    if verdict.killer:
        return f"{line} killed by {verdict.killer}"
    reason = reasons.get(verdict.mutant.place)
    return f"{line} survived: {reason}" if reason else f"{line} SURVIVED {verdict.tests} tests that call it"


def summary(verdicts: list[Verdict], reasons: dict[str, str], only: list[str]) -> int:
    """Prints what is wrong with the list of reasons, and the last line; the exit code."""
    survivors = {verdict.mutant.place for verdict in verdicts if not verdict.killer}
    expected = {place for place in reasons if not only or place.split()[0] in only}
    for place in sorted(survivors - expected):
        print(f"survives without a reason, write a test or give one: {place}")
    for place in sorted(expected - survivors):
        print(f"has a reason and does not survive, take it off the list: {place}")
    count, killed = len(verdicts), len(verdicts) - len(survivors)
    share = 100 * killed / count if count else 0.0
    print(f"killed {killed} of {count} ({share:.1f} %)")
    return 0 if survivors == expected and count and 100 * killed >= GOAL * count else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
