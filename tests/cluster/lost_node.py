"""Numbered messages go round four participants on three nodes; one node dies in the middle of a checkpoint.

::

    python -m tests.cluster.lost_node --messages 50000

The checkpoint is held open by two handlers, one on the node that dies and one on a node that lives on: it
is begun, others have written their images for it, and it cannot commit. Then the raylet of the node is
killed; its workers end with it. Its participants are placed on the two nodes that are left and restored from
the store, and everybody goes back to the newest committed cut. Exit status 0 if each message was applied
once, in order, the held checkpoint was aborted and nobody is on the lost node.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import cutline
from cutline.coordinator.ray_nodes import own_node
from cutline.errors import CutlineError
from tests.cluster.machines import SEAT, cluster, node_of
from tests.programs.ring import SIZE, Ring, again, ask_until_kept, connect, judge
from tests.system.living import until

__all__ = ("Holder", "main")


_PATIENCE = 60.0
_until = partial(until, timeout=_PATIENCE)


@cutline.actor(resources={SEAT: 1}, scheduling_strategy="SPREAD")
class Holder(Ring):
    """One of the ring that can be told to stay in a handler."""

    def hold(self, path: str) -> None:
        """Returns when the file is gone."""
        while Path(path).exists():
            time.sleep(0.01)


def lose_a_node(made: Any, system: Any, ring: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Kills a node between begun and committed; returns what was lost and in which checkpoint."""
    places = {name: node_of(system, name) for name in ring}
    # A program whose own node is lost is lost with it; that is another story.
    candidates = [node for node in made.list_all_nodes() if node.node_id != own_node()]
    victim = next(node for node in candidates if node.node_id in places.values())
    lost = sorted(name for name, place in places.items() if place == victim.node_id)
    held = [lost[0], next(name for name in ring if name not in lost)]
    gate = folder / "gate"
    gate.touch()
    for name in held:
        ring[name].hold.tell(str(gate))
    _until(lambda: {_running(system, name) for name in held} == {"hold"}, "the handlers")
    before = system.status()
    newest = max([before["committed"], *before["undecided"]])
    asked = threading.Thread(target=_ask, args=(system,), daemon=True)
    asked.start()
    open_now: list[int] = _until(
        lambda: [number for number in system.status()["undecided"] if number > newest], "an open checkpoint"
    )
    made.remove_node(victim, allow_graceful=False)
    killed_at = time.monotonic()
    _until(lambda: _noticed(system, "aborted", checkpoint=open_now[0]), "the end of the checkpoint")
    gate.unlink()
    _until(lambda: _noticed(system, "recovered"), "the recovery")
    asked.join(_PATIENCE)
    return {
        "nodes_of_participants": len(set(places.values())),
        "lost": lost,
        "node": victim.node_id,
        "aborted_checkpoint": open_now[0],
        "recovered_s": round(time.monotonic() - killed_at, 2),
    }


def _running(system: Any, name: str) -> str:
    return str(system.status()["participants"][name]["running"])


def _noticed(system: Any, what: str, **fields: Any) -> bool:
    return any({**notice, **fields, "what": what} == notice for notice in system.notices)


def _ask(system: Any) -> None:
    try:
        system.checkpoint()
    except CutlineError as error:
        print(f"the checkpoint that was asked for: {error}", flush=True)


def run(made: Any, messages: int, folder: Path) -> int:
    """Runs the ring on a cluster that stands, loses a node, and judges."""
    began = time.monotonic()
    with cutline.start(folder, name="ring", interval=1.0, quiet=True) as system:
        names = [f"ring{k}" for k in range(SIZE)]
        spawned = [system.spawn(name, Holder, k, messages, 8, 0.0) for k, name in enumerate(names)]
        for k, one in enumerate(spawned):
            connect(one, spawned[(k + 1) % SIZE])
        up = time.monotonic() - began
        for token in range(8):
            spawned[token % SIZE].take.options(key=f"token {token}").tell(token)
        _until(lambda: system.status()["handlers"] > messages // 20, "some messages")
        system.checkpoint()
        loss = lose_a_node(made, system, dict(zip(names, spawned, strict=True)), folder)
        reports: list[Any] = []
        while sum(len(applied) for applied, _faults in reports) < messages:
            while again(system.status)["handlers"] < messages:
                time.sleep(0.1)
            reports = [ask_until_kept(one)[0] for one in spawned]
        wrong = judge(reports, messages)
        if any(node_of(system, name) == loss["node"] for name in names):
            wrong.append("somebody is said to be on the node that is gone")
        recovered = [notice for notice in system.notices if notice["what"] == "recovered"]
        figures = {
            "messages": messages,
            "applied": sum(len(applied) for applied, _faults in reports),
            **loss,
            "back_to_checkpoint": recovered[0]["checkpoint"],
            "handlers_rerun": sum(notice["handlers_rerun"] for notice in recovered),
            "recoveries": len(recovered),
            "committed": again(system.status)["committed"],
            "up_s": round(up, 1),
            "seconds": round(time.monotonic() - began, 1),
            "wrong": wrong,
        }
    print(json.dumps(figures), flush=True)
    return 1 if wrong else 0


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=50_000)
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    with cluster(nodes=3) as made, tempfile.TemporaryDirectory(prefix="cutline-cluster-") as folder:
        return run(made, options.messages, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
