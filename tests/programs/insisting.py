"""Wants its changes found by the kernel, whatever that can do."""

from __future__ import annotations

import tempfile

import numpy as np

import cutline
from cutline.errors import RefusedOption


@cutline.actor(tracking="kernel")
class Insisting:
    """Has a large array."""

    def __init__(self) -> None:
        self.array = np.zeros(1 << 20)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, cutline.start(folder, interval=None) as system:
        try:
            system.spawn("insisting", Insisting)
        except RefusedOption as error:
            print(f"RefusedOption: {error}")
        else:
            print(system.checkpoint())
