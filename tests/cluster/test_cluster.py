"""One cluster of three nodes for all tests here; each is bounded in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cutline
from cutline.errors import Misuse, SpawnFailed, StoreNotShared
from cutline.participant.endpoint_file import read_endpoint
from cutline.participant.liaison import ORPHAN_AFTER
from cutline.storage import open_store

ray = pytest.importorskip("ray")
from cutline.coordinator.ray_nodes import own_node  # noqa: E402
from tests.cluster.lost_node import Holder  # noqa: E402
from tests.cluster.machines import blind_node, cannot_unshare, cluster, node_of  # noqa: E402
from tests.programs.ring import SIZE, ask_until_kept, connect, judge  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def made() -> Iterator[Any]:
    """The cluster."""
    with cluster(nodes=3) as one:
        yield one


def _until(found: Callable[[], Any], what: str, timeout: float = 40.0) -> Any:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        outcome = found()
        if outcome:
            return outcome
        time.sleep(0.05)
    raise AssertionError(f"waited {timeout:.0f} s for: {what}")


def _actors(system: str) -> list[str]:
    """Names of the actors of a system that Ray still has."""
    named: Any = ray.util.list_named_actors  # without annotations in Ray
    return [
        actor["name"] for actor in named(all_namespaces=True) if actor["namespace"] == f"cutline/{system}"
    ]


def test_draining_a_node_moves_its_participants_and_loses_no_message(made: Any, tmp_path: Path) -> None:
    messages = 4_000
    with cutline.start(tmp_path, name="drained", interval=None, quiet=True) as system:
        names = [f"ring{k}" for k in range(SIZE)]
        ring = [system.spawn(name, Holder, k, messages, 8, 0.0) for k, name in enumerate(names)]
        for k, one in enumerate(ring):
            connect(one, ring[(k + 1) % SIZE])
        for token in range(8):
            ring[token % SIZE].take.options(key=f"token {token}").tell(token)
        node = next(n for n in (node_of(system, name) for name in names) if n != own_node())
        there = {name for name in names if node_of(system, name) == node}
        places = system.drain(node)
        assert set(places) == there
        assert node not in places.values()
        assert places == {name: node_of(system, name) for name in places}
        reports: list[Any] = []
        while sum(len(applied) for applied, _faults in reports) < messages:
            reports = [ask_until_kept(one)[0] for one in ring]
        assert judge(reports, messages) == []
        with pytest.raises(Misuse, match="no node 'ffff'"):
            system.drain("ffff")
        # The two others go too: the last one finds nowhere to be.
        left = {node_of(system, name) for name in names}
        system.drain(left.pop())
        with pytest.raises(Misuse, match="no other node"):
            system.drain(left.pop())
        assert judge([ask_until_kept(one)[0] for one in ring], messages) == []
    _until(lambda: not _actors("drained"), "an empty namespace")


def test_what_ray_drains_is_moved_too(made: Any, tmp_path: Path) -> None:
    gcs = ray._private.worker.global_worker.gcs_client
    preemption, deadline = 2, int((time.time() + 600) * 1000)
    extra = [made.add_node(num_cpus=1, resources={"spare": 1}, include_dashboard=False)]
    try:
        with cutline.start(tmp_path, name="told", interval=None, quiet=True) as system:
            spare = system.spawn("spare", cutline.actor(resources={"spare": 1})(Holder), 0, 1, 1, 0.0)
            spare.take.remote(0).result()
            assert node_of(system, "spare") == extra[0].node_id
            extra.append(made.add_node(num_cpus=1, resources={"spare": 1}, include_dashboard=False))
            assert gcs.drain_node(extra[0].node_id, preemption, "a test", deadline)[0]
            moved = _until(lambda: [n for n in system.notices if n["what"] == "moved"], "the move")[0]
            assert moved["places"] == {"spare": extra[1].node_id}
            assert ask_until_kept(spare)[0] == ([0], [])
            # Now nobody has what it needs: it stays as long as the node does, and the user is told.
            assert gcs.drain_node(extra[1].node_id, preemption, "a test", deadline)[0]
            told = _until(lambda: [n for n in system.notices if n["what"] == "not_moved"], "a notice")[0]
            assert "'spare' cannot leave node" in told["text"]
            assert ask_until_kept(spare)[0] == ([0], [])
    finally:
        for node in extra:
            made.remove_node(node, allow_graceful=False)


def test_a_node_without_the_storage_folder_is_refused(made: Any, tmp_path: Path) -> None:
    reason = cannot_unshare()
    if reason:
        pytest.skip(f"no node can be given another view of the file system here: {reason}")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    with cutline.start(folder, name="before", interval=None, quiet=True) as system:
        before = len(made.list_all_nodes())
        with blind_node(made.address, folder, json.dumps({"blind": 1})):
            _until(lambda: ray.cluster_resources().get("blind"), "the blind node")
            # It has joined after the start: whoever is launched there finds out.
            with pytest.raises(
                SpawnFailed, match="StoreNotShared: participant 'lost' was started on"
            ) as found:
                system.spawn("lost", cutline.actor(resources={"blind": 1})(Holder), 0, 1, 1, 0.0)
            assert str(folder) in str(found.value)
            with pytest.raises(StoreNotShared, match="is another one, or not there, on node"):
                cutline.start(folder, name="after", interval=None, quiet=True)
            assert _actors("after") == []
        assert before == 3
        assert list(folder.glob("reach-*")) == []


def _drive(made: Any, folder: Path, grace: float, count: int) -> list[str]:
    """Runs `leaves.py` until it waits, and kills it; returns its lines."""
    environment = {**os.environ, "RAY_ADDRESS": made.address, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, str(ROOT / "tests/cluster/leaves.py"), str(folder), str(grace), str(count)]
    driver = subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    lines = []
    try:
        for line in driver.stdout:
            lines.append(line.strip())
            if line == "waits\n":
                break
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait(10)
        driver.stdout.close()
    return lines


def test_a_killed_driver_leaves_nothing_behind_and_resumes(made: Any, tmp_path: Path) -> None:
    lines = _drive(made, tmp_path, 300.0, 3)
    assert lines == ["resumed 0", "count 1", "count 2", "count 3", "waits"]
    assert _actors("leaves"), "on a cluster the system outlives its driver"
    # The next run need not wait for the grace to end.
    lines = _drive(made, tmp_path, 1.0, 5)
    resumed = int(lines[0].split()[1])
    assert resumed > 0
    assert lines[1:] == ["count 4", "count 5", "waits"]
    _until(lambda: not _actors("leaves"), "the end of a system without a driver")
    store = open_store(str(tmp_path), create=False)
    assert store.catalog.checkpoints("leaves")[-1].checkpoint > resumed


def test_participants_without_coordinator_and_driver_end_themselves(made: Any, tmp_path: Path) -> None:
    _drive(made, tmp_path, 300.0, 1)
    endpoint = read_endpoint(tmp_path, "leaves")
    assert endpoint is not None
    os.kill(endpoint.pid, signal.SIGKILL)
    _until(lambda: len(_actors("leaves")) == 1, "the end of the coordinator's actor")
    _until(lambda: not _actors("leaves"), "the end of an orphan", timeout=ORPHAN_AFTER + 15.0)


@cutline.actor(num_cpus=0.1)
class BuiltTogether:
    """Its constructor returns when all of its kind are in theirs."""

    def __init__(self, folder: str, name: str, count: int) -> None:
        self.called = name
        Path(folder, name).touch()
        _until(lambda: len(os.listdir(folder)) == count, f"{count} constructors at once")

    def name(self) -> str:
        """Who it is."""
        return self.called


def test_eight_participants_are_built_at_the_same_time(made: Any, tmp_path: Path) -> None:
    kind: Any = BuiltTogether
    names = [f"slow{k}" for k in range(8)]
    folder = tmp_path / "building"
    folder.mkdir()
    with cutline.start(tmp_path / "store", name="side-by-side", interval=None, quiet=True) as system:
        began = time.monotonic()
        # Making one waits for nobody: the first could not be up before the last is made.
        some = [kind.options(name=name).remote(str(folder), name, len(names)) for name in names]
        system.ready(some)
        print(f"{len(names)} participants were up after {time.monotonic() - began:.1f} s")
        assert cutline.get([one.name.remote() for one in some]) == names
