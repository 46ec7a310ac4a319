"""Keeps its state in STORE through the loss of a participant, and prints what it found as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

import cutline
from tests.system.living import again, kill

NUMBERS = 1 << 18


class Keeper:
    """Has an array of 2 MiB."""

    def __init__(self) -> None:
        self.array = np.zeros(NUMBERS)

    def put(self, at: int, number: float) -> None:
        self.array[at] = number

    def told(self) -> dict[str, Any]:
        """What is not zero in the array, and the process."""
        places = np.flatnonzero(self.array).tolist()
        return {"pid": os.getpid(), "array": [[at, float(self.array[at])] for at in places]}


def main() -> None:
    """Two checkpoints, something that is in neither, and a loss."""
    with cutline.start(sys.argv[1], name="surviving", interval=None, quiet=True) as system:
        keeper = system.spawn("keeper", Keeper)
        for at, number in ((0, 1.0), (NUMBERS - 1, 2.0)):
            keeper.put.remote(at, number).result()
            system.checkpoint()
        keeper.put.remote(NUMBERS // 2, 3.0).result()
        before = keeper.told.remote().result()
        kill(system, "keeper")
        after = again(lambda: keeper.told.remote().result())
        rows = [row.summary for row in system.checkpoints()]
        print(json.dumps({"before": before, "after": after, "rows": rows}))


if __name__ == "__main__":
    main()
