"""``make test-crash``: crash points of making a store, of commits, a collection, an export, an import,
inputs, steps.

    python -m tests.crash                        everything, then the planted bugs; some minutes
    python -m tests.crash --only power --deed gc --lots 20 --seed 7
    python -m tests.crash --only servers --servers-every 1     where PostgreSQL and SeaweedFS can be had

Ends with ``N crash points, 0 lost``; with anything lost, or a planted bug not caught, the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.crash.deeds import DEEDS, here, make_base
from tests.crash.planted import PLANTED, Bug
from tests.crash.power import Tally, power
from tests.crash.process import process
from tests.crash.servers import WAYS, at_servers
from tests.crash.shim import MODES, why_not
from tests.crash.worker import Worker, a_worker

__all__ = ("a_place", "caught", "main")

_PARTS = ("power", "syncs", "process", "servers", "planted")
_SYNC_EVERY = 3


@contextmanager
def a_place() -> Iterator[tuple[Path, Path]]:
    """A folder for stores that die, in memory where there is such a place, and the base they begin from."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="cutline-crash-", dir=memory if memory.is_dir() else None))
    try:
        base = place / "base"
        base.mkdir()
        make_base(base, here(base))
        yield place, base
    finally:
        shutil.rmtree(place, ignore_errors=True)


def caught(worker: Worker, bug: Bug, base: Path, place: Path, every: int = 1) -> Tally:
    """What the way that must catch a planted bug finds."""
    if bug.way == "power":
        return power(
            worker, bug.deed, base, place, seed=bug.name, lots=0, plant=bug.name, every=every, enough=1
        )
    return process(worker, bug.deed, base, place, bug.how, plant=bug.name, every=every, enough=1)


def failed_syncs(worker: Worker, deed: str, base: Path, place: Path, seed: str) -> Tally:
    """Each sync of a deed fails, the process goes on, and then the power goes."""
    tally = Tally()
    at = 1
    while True:
        one = power(
            worker, deed, base, place, seed=f"{seed}/{at}", lots=1, how="EIO", at=at, every=_SYNC_EVERY
        )
        tally.add(one)
        if one.over or tally.lost:
            return tally
        at += 1


def _told(name: str, work: Callable[[], Tally], total: Tally) -> None:
    began = time.monotonic()
    tally = work()
    total.add(tally)
    states = f", {tally.states} states" if tally.states else ""
    took = f"{time.monotonic() - began:6.1f} s"
    print(f"{name:32} {tally.points:6} points{states:>14} {took}  {len(tally.lost)} lost", flush=True)
    for fault in tally.lost:
        print(f"    {fault}", flush=True)


def run(worker: Worker, place: Path, base: Path, options: argparse.Namespace) -> tuple[Tally, list[str]]:
    """All parts that are asked for; what they found, and planted bugs that nothing has caught."""
    total = Tally()
    deeds = [options.deed] if options.deed else list(DEEDS)
    missed = []
    for deed in deeds:
        if "power" in options.only:
            how = partial(power, seed=options.seed, lots=options.lots, every=options.every)
            _told(f"power, {deed}", partial(how, worker, deed, base, place), total)
        if "syncs" in options.only and deed in ("commit", "gc", "input", "step"):
            work = partial(failed_syncs, worker, deed, base, place, options.seed)
            _told(f"a failed sync, then power, {deed}", work, total)
        for mode in MODES if "process" in options.only else ():
            work = partial(process, worker, deed, base, place, mode, every=options.every)
            _told(f"process, {deed}, {mode}", work, total)
    if "servers" in options.only:
        beside = ("input", "step")
        # What these write is on this machine, wherever the store is.
        total.add(_at_servers(place, [deed for deed in deeds if deed not in beside], options.servers_every))
    for bug in PLANTED.values() if "planted" in options.only else ():
        found = caught(worker, bug, base, place)
        verdict = "caught" if found.lost else "NOT CAUGHT"
        print(f"planted: {bug.name:36} {verdict} after {found.points} points", flush=True)
        missed += [] if found.lost else [bug.name]
    return total, missed


def _at_servers(place: Path, deeds: list[str], every: int) -> Tally:
    total = Tally()
    with contextlib.ExitStack() as stack:
        try:
            servers = stack.enter_context(at_servers(place))
        except LookupError as error:
            print(f"servers: left out, {error}")
            return total
        for deed in deeds:
            for way in WAYS:
                _told(f"servers, {deed}, {way}", partial(servers.each, deed, way, every=every), total)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", choices=_PARTS, help="these parts alone")
    parser.add_argument("--deed", choices=list(DEEDS), help="this deed alone")
    parser.add_argument("--lots", type=int, default=6, help="power cuts by lot at each operation (6)")
    parser.add_argument("--every", type=int, default=1, help="only each so many operations (1: all)")
    parser.add_argument("--servers-every", type=int, default=3, help="the same at the servers (3)")
    parser.add_argument("--seed", default="1", help="of the lots (1)")
    options = parser.parse_args()
    options.only = options.only or list(_PARTS)
    reason = why_not()
    if reason:
        print(f"cannot be run: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="cutline-keys-") as home:
        # Keys of stores that are thrown away are not for the user to keep.
        os.environ["CUTLINE_HOME"] = home
        with a_place() as (place, base), a_worker() as worker:
            total, missed = run(worker, place, base, options)
    if missed:
        print(f"planted bugs that were not caught: {', '.join(missed)}")
    print(f"{total.points} crash points, {len(total.lost)} lost")
    return 1 if total.lost or missed else 0


if __name__ == "__main__":
    sys.exit(main())
