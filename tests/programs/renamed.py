"""A system whose class is called as the argument says: run with another name, it lacks the old class."""

from __future__ import annotations

import os
import sys
from typing import Any

import cutline


def make(name: str) -> type:
    """A class of that name in this module."""

    def add(self: Any, number: int) -> int:
        self.count += number
        return int(self.count)

    def __init__(self: Any) -> None:
        self.count = 0

    kind = type(name, (), {"add": add, "__init__": __init__, "__module__": __name__})
    globals()[name] = kind
    return kind


def main() -> None:
    """Starts, adds one, stops."""
    kind = make(sys.argv[1])
    with cutline.start(os.environ["STORE"], interval=None, quiet=True) as system:
        first, second = system.spawn("first", kind), system.spawn("second", kind)
        print("sums", first.add.remote(1).result(), second.add.remote(1).result())


if __name__ == "__main__":
    main()
