"""``make fuzz-format``: random damage to every kind of file; never a wrong state, never a nameless error.

    python -m tests.fuzz --duration 60
    python -m tests.fuzz --seed 7 --first 1234 --damages 1       one of them again

Each damage is one seed's. Ends with ``N damages, 0 wrong``.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz.base import FILE, FOLDER, Base, make
from tests.fuzz.damage import damage
from tests.fuzz.forged import AUTHENTIC, forge
from tests.fuzz.judge import Wrong, judge_export, judge_store

__all__ = ("a_base", "main", "one")

# Bytes that the process may have in all: who believes a damaged size runs into them.
_MEMORY = 4 << 30


@contextmanager
def a_base() -> Iterator[Base]:
    """What is damaged, in memory where there is such a place."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="cutline-fuzz-", dir=memory if memory.is_dir() else None))
    try:
        yield make(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def one(base: Base, seed: str) -> tuple[list[str], list[str]]:
    """(what was damaged, the errors that came of it). Raises Wrong."""
    lot = random.Random(seed)
    kind = lot.choice((FILE, FOLDER, "closed", "open", "closed", "open"))
    place = base.place / "damaged"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    top = place / kind
    if kind == FILE:
        shutil.copyfile(base.place / kind, top)
    else:
        shutil.copytree(base.place / kind, top)
    done: list[str] = []
    try:
        forging = lot.randrange(4) == 0
        if forging:
            done.append(forge(lot, top))
        for _ in range(lot.choice((0, 0, 0, 1)) if forging else lot.choice((1, 1, 1, 2, 3))):
            done.append(damage(lot, top, base))
        # Without a key, nobody can tell what was forged from what was written.
        believed = forging and not AUTHENTIC
        if kind in (FILE, FOLDER):
            return done, judge_export(top, base, forged=believed)
        single = len(done) == 1 and not forging
        return done, judge_store(top, base, lot, single=single, forged=believed)
    except Wrong as wrong:
        raise Wrong(f"{'; '.join(done)}: {wrong}") from wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--duration", type=float, default=60.0, help="seconds (60)")
    parser.add_argument("--damages", type=int, default=0, help="so many instead")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--first", type=int, default=1, help="the number of the first damage (1)")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    end = time.monotonic() + options.duration
    number, wrong = options.first, 0
    outcomes: Counter[str] = Counter()
    with a_base() as base:
        while number < options.first + options.damages if options.damages else time.monotonic() < end:
            try:
                done, refusals = one(base, f"{options.seed}/{number}")
                outcomes["refused" if refusals else "harmless"] += 1
                if options.damages == 1:
                    print(*done, *refusals, sep="\n")
            except Wrong as error:
                wrong += 1
                print(f"damage {number} of seed {options.seed}: {error}")
                again = f"--seed {options.seed} --first {number} --damages 1"
                print(f"again: python -m tests.fuzz {again}", flush=True)
            number += 1
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))
    print(f"{number - options.first} damages, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
