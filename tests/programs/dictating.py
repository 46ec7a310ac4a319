"""Tells a counter numbers, each acknowledged before the next, each under its key; prints which are.

Arguments: the storage folder, the first number. It is killed, and begun again some numbers before that.
"""

from __future__ import annotations

import sys

import cutline
from cutline.errors import RolledBack
from tests.system.actors import Counter

TEXT = "x" * 200


def main() -> None:
    folder, number = sys.argv[1], int(sys.argv[2])
    with cutline.start(folder, interval=0.1, keep=2, quiet=True) as system:
        counter = system.spawn("counter", Counter)
        print(f"coordinator {system.coordinator_pid}", flush=True)
        while True:
            call = counter.note.options(key=f"number {number}", acked=True)
            try:
                call.tell([number, TEXT])
            except RolledBack:
                # Undone or not, it is told again: that is what the key is for.
                continue
            print(f"acked {number}", flush=True)
            number += 1


if __name__ == "__main__":
    main()
