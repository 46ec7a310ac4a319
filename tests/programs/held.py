"""Starts a system in STORE, or says which error kept it from starting; holds it until its input ends."""

from __future__ import annotations

import os
import sys

import cutline
from tests.system.actors import Counter


def main() -> int:
    """Status 0 if the system came up."""
    try:
        system = cutline.start(os.environ["STORE"], interval=None, quiet=True)
    except cutline.errors.CutlineError as error:
        print("error", type(error).__name__, error)
        return 1
    counter = system.spawn("counter", Counter)
    print("up", os.getpid(), counter.add.remote(1).result(), flush=True)
    sys.stdin.read()
    system.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
