"""Two participants count to a number that the command line names: a program to be measured.

Storage, interval and all else are the program's own; it knows nothing of who runs it.
"""

from __future__ import annotations

import sys

import cutline


class Counter:
    """Counts, and holds some state."""

    def __init__(self) -> None:
        self.count = 0
        self.held = [str(number) for number in range(1000)]

    def add(self) -> int:
        self.count += 1
        return self.count


def main() -> int:
    goal, interval = int(sys.argv[1]), sys.argv[2]
    with cutline.start(
        "./never-used", name="counting", interval=None if interval == "none" else float(interval), quiet=True
    ) as system:
        counters = [system.spawn(f"counter-{number}", Counter) for number in range(2)]
        for _ in range(goal):
            counts = cutline.get([each.add.options(durable=False).remote() for each in counters])
        return 0 if counts == [goal, goal] else 3


if __name__ == "__main__":
    sys.exit(main())
