"""The process that dies: it waits for orders, one a line, and forks for each.

Run with the shim loaded. An order says what is to be done, in which folder, at which operation it is struck
and how, and which bug is planted; the answer, how the child ended, how many operations there were, and what
it said in the end.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.crash.deeds import DEEDS, Child, try_it
from tests.crash.planted import PLANTED
from tests.crash.shim import Shim

__all__ = ("main",)

_WRONG = 70
_PATIENCE = 60


def obey(order: dict[str, Any], shim: Shim) -> None:
    """In the forked child; does not return."""
    # What hangs is wrong as well.
    signal.alarm(_PATIENCE)
    top = Path(order["top"])
    status = 0
    with open(order["said"], "w", encoding="utf-8") as said:
        try:
            if order["plant"]:
                PLANTED[order["plant"]].plant()
            child = Child(top, order["url"], shim.mark)
            Path(order["pid"]).write_text(str(os.getpid()))
            log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            shim.begin(top, log, order["at"], order["how"])
            if not order["goes_on"]:
                DEEDS[order["deed"]](child)
                child.store.close()
                outcome = "done"
                count = shim.count()
            else:
                outcome, count = _tried(child, order, shim)
        except BaseException:
            status, outcome, count = _WRONG, traceback.format_exc(), shim.count()
        json.dump({"outcome": outcome, "count": count}, said)
    os._exit(status)


def _tried(child: Child, order: dict[str, Any], shim: Shim) -> tuple[str, int]:
    counts: list[int] = []

    def mended() -> None:
        counts.append(shim.count())
        shim.mend()
        Path(order["pid"]).unlink()

    return try_it(child, order["deed"], mended), counts[0]


def main() -> None:
    shim = Shim()
    # Loaded once, before the first fork.
    for name in ("objects", "postgresql"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"cutline.storage.{name}")
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            obey(order, shim)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
