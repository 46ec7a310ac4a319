"""Nodes that Ray takes for alive, and that are gone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cutline.barrier import Member
from cutline.coordinator.roster import Seat
from cutline.errors import SpawnFailed

ray = pytest.importorskip("ray")
from cutline.coordinator import launch_ray  # noqa: E402
from cutline.coordinator.launch_ray import RayLauncher  # noqa: E402
from cutline.coordinator.ray_nodes import NODE_LABEL, silent_nodes  # noqa: E402


@pytest.fixture
def raylets(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A cluster as Ray describes it: `up` takes connections, `gone` does not, `dead` is known to be."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {"up": listening.getsockname()[1], "gone": other.getsockname()[1], "dead": 1}
        other.close()
        told = {
            name: {
                "NodeID": name,
                "Alive": name != "dead",
                "NodeManagerAddress": "127.0.0.1",
                "NodeManagerPort": port,
            }
            for name, port in ports.items()
        }
        monkeypatch.setattr(ray, "nodes", lambda: list(told.values()))
        yield told


def test_a_node_that_takes_no_connection_is_silent(raylets: dict[str, Any]) -> None:
    assert silent_nodes({"up", "gone", "dead", "of another cluster"}) == ["gone"]
    assert silent_nodes({"up"}) == []
    assert silent_nodes(set()) == []


def test_nobody_is_started_on_a_node_that_was_lost_until_ray_knows_of_it(
    raylets: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def ask(options: Any, name: str) -> Any:
        asked.append((name.partition("#")[0], options.get("label_selector")))
        raise ValueError("not today")

    monkeypatch.setattr(launch_ray, "_actor", ask)
    monkeypatch.setattr(launch_ray, "cluster_name", lambda: "here")
    monkeypatch.setattr(RayLauncher, "_watch", lambda self: None)
    common = {"program": {"path": [], "argv": [], "cwd": ""}, "system": "s"}
    launcher = RayLauncher(lambda event: None, common, folder=tmp_path, hash_seed=1)

    def start(name: str, node: str) -> None:
        with pytest.raises(SpawnFailed, match="not today"):
            launcher.start(Seat(Member(name, 1), "C", {}, node=node), "restore", 0.0)

    start("one", "up")
    start("two", "gone")
    start("three", "up")
    raylets["gone"]["Alive"] = False
    launcher._avoid_the_silent()
    start("four", "up")
    avoided = {NODE_LABEL: "!in(gone)"}
    assert asked == [("one", None), ("two", avoided), ("three", avoided), ("four", None)]
