"""A driver with a loop, made to be ended at any moment and started again; its outcome is always the same.

``journey.py STAGE``: prints ``at STAGE`` when it comes to that stage, where it can be ended from outside;
once it has come to the end it prints ``result ...``. Stages: none, start, spawn, get, loop, stop.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import cutline
from tests.system.actors import Counter

STEPS = 12


class Slow:
    """Takes its time to come up, if a file says so."""

    def __init__(self, flag: str) -> None:
        if os.path.exists(flag):
            threading.Event().wait(1.0)

    def wait(self, seconds: float) -> str:
        """Holds whoever asks."""
        threading.Event().wait(seconds)
        return "waited"


def main() -> None:
    """The whole journey."""
    stage = sys.argv[1]
    folder = os.environ["STORE"]
    flag = folder + ".slow"

    def reached(name: str) -> None:
        if stage == name:
            print("at", name, flush=True)

    reached("start")
    system = cutline.start(folder, interval=0.1, quiet=True)
    if stage == "spawn":
        open(flag, "w").close()
    reached("spawn")
    slow = system.spawn("slow", Slow, flag)
    counters = [system.spawn(f"c{k}", Counter) for k in range(3)]
    if stage == "get":
        answer = slow.wait.options(durable=False).remote(30.0)
        while not system.status()["participants"]["slow"]["running"]:
            threading.Event().wait(0.02)
        reached("get")
        answer.result()

    def body(step: int) -> None:
        answers: list[Any] = [counter.add.remote(step) for counter in counters]
        if step == STEPS // 2:
            reached("loop")
            if stage == "loop":
                threading.Event().wait(0.5)
        cutline.get(answers)
        cutline.get([counter.note.remote(step) for counter in counters])

    system.loop("steps", STEPS, body)
    sums = cutline.get([counter.add.remote(0) for counter in counters])
    notes = cutline.get([counter.notes.remote() for counter in counters])
    fine = all(note == list(range(STEPS)) for note in notes)
    print("result", sums, fine, flush=True)
    reached("stop")
    system.stop()


if __name__ == "__main__":
    main()
