"""Programs on a cluster that outlives them, each driven line by line."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cutline.coordinator.client import Client
from cutline.errors import CutlineError
from tests.system.living import Program, until

__all__ = ("Session", "ask", "back_at_work", "outlasting_cluster", "participants")


class Session(Program):
    """One driver; see tests/programs/session.py."""

    def __init__(self, address: str) -> None:
        environment = {"RAY_ADDRESS": address} if address else {}
        super().__init__("session.py", **environment)

    def do(self, line: str) -> Any:
        """The value of an expression."""
        kind, text = self._outcome(line)
        assert kind == "=", f"{line}: {text}"
        return ast.literal_eval(text)

    def run(self, line: str) -> None:
        """An expression whose value is of no use here."""
        kind, text = self._outcome(line)
        assert kind == "=", f"{line}: {text}"

    def fails(self, line: str) -> str:
        """The error of an expression: its type and its text."""
        kind, text = self._outcome(line)
        assert kind == "!", f"{line} gave {text}"
        return text

    def _outcome(self, line: str) -> tuple[str, str]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        for said in self.process.stdout:
            self.lines.append(said.rstrip())
            if said[:2] in ("= ", "! "):
                return said[0], said[2:].rstrip()
        raise AssertionError(f"the program ended at {line!r}:\n{self.text}")

    def end_in_order(self) -> None:
        """Its input ends, and so does it."""
        assert self.end() == 0, self.text


def ask(folder: Path, what: str, **fields: Any) -> Any:
    """What the coordinator answers to one who is no driver."""
    with Client(folder, "session") as client:
        return client.request(what, **fields)


def participants(folder: Path) -> dict[str, Any]:
    """Everybody's phase and process; empty while the coordinator does not answer."""
    try:
        status = ask(folder, "status", timeout=10.0)
    except (CutlineError, TimeoutError):
        return {}
    return dict(status["participants"]) if status["flowing"] else {}


def back_at_work(folder: Path, name: str, pid: int) -> int:
    """Waits until a participant runs in another process than `pid`; returns that."""

    def found() -> int:
        seat = participants(folder).get(name, {})
        return int(seat["pid"]) if seat.get("phase") == "running" and seat["pid"] != pid else 0

    return until(found, f"{name} to be back", timeout=60.0)


@contextmanager
def outlasting_cluster() -> Iterator[str]:
    """A cluster of one node that belongs to no driver; its address."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_DISABLE_DOCKER_CPU_WARNING", "1")
    cluster: Any = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 4, "include_dashboard": False, "object_store_memory": 100 * 1024 * 1024},
    )
    try:
        yield str(cluster.address)
    finally:
        cluster.shutdown()
