"""Rows against peers: those whose peer is absent say so, and those with light peers run small."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import bench.bench_peers_channel
import bench.peers.counting
import bench.peers.threads
from bench.bench_peers_capture import measure as measure_capture
from bench.bench_peers_channel import measure as measure_channel
from bench.bench_peers_flink import measure as measure_flink
from bench.limits import polled
from bench.peers.child import Absent, Child
from bench.peers.counting import compared as measure_counting
from bench.peers.held import SHAPES, Held, OurHeld
from bench.peers.threads import Appending, PeerOf, Steps
from bench.peers.threads import compared as measure_steps
from bench.peers.turns import Peers, in_turns
from bench.row import NOT_IN_QUICK, Missing, Row
from bench.trigger import Trigger

ABSENT = "tests.bench.absent_peer"


def rows_of(found: list[Row | Missing]) -> dict[str, Row]:
    """By name; each has samples of both sides."""
    rows = {each.name: each for each in found if isinstance(each, Row)}
    assert all(min(*row.samples_ours, *row.samples_baseline) > 0 for row in rows.values())
    assert all(row.against and row.group for row in rows.values())
    return rows


def test_a_process_answers_and_what_it_prints_is_no_answer() -> None:
    with Child(ABSENT, "there") as child:
        assert child.ask(word="yes") == {"said": "yes"}
        with pytest.raises(RuntimeError, match="the peer has had enough"):
            child.ask(word="end")


@pytest.mark.parametrize(
    ("why", "said"), [("import", "No module named 'cutline.no_such_peer'"), ("server", "no such server here")]
)
def test_a_peer_that_cannot_be_had_is_missing(why: str, said: str) -> None:
    with Peers() as peers:
        assert peers.open("nobody", lambda: Child(ABSENT, why)) is None
        assert peers.rows({"x_vs_nobody": "nobody", "x_vs_other": "other"}) == [Missing("x_vs_nobody", said)]


def test_peers_are_closed_once_and_an_error_is_no_absence() -> None:
    closed: list[str] = []

    class Peer:
        def close(self) -> None:
            closed.append("closed")

    def broken() -> Peer:
        raise AssertionError("lost a message")

    with pytest.raises(AssertionError, match="lost a message"), Peers() as peers:
        assert peers.open("good", Peer) is not None
        peers.open("broken", broken)
    assert closed == ["closed"]


def test_each_round_begins_with_another_side() -> None:
    taken: list[str] = []

    def take(name: str) -> int:
        taken.append(name)
        return len(taken)

    sides: dict[str, Callable[[], int]] = {name: partial(take, name) for name in "abc"}
    samples = in_turns(2, sides, warm=1)
    assert "".join(taken) == "cbaabcbac"
    assert samples == {"a": [4, 8], "b": [5, 7], "c": [6, 9]}


def test_both_sides_hold_and_change_the_same() -> None:
    for shape in SHAPES:
        theirs, ours = Held(shape, 0.01), OurHeld(shape, 0.01)
        first = theirs.digest()
        assert first == ours.digest()
        for held in (theirs, ours):
            held.change()
        assert first != theirs.digest() == ours.digest()


def test_channel_rows_run_small_and_name_a_server_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise Absent("no redis-server here")

    monkeypatch.setattr(bench.bench_peers_channel, "RedisStream", absent)
    found = measure_channel(rounds=1, messages=2_000, slow=100, ray=False)
    assert set(rows_of(found)) == {"channel_vs_grpc", "channel_vs_grpc_batched"}
    missing = [each for each in found if isinstance(each, Missing)]
    assert missing == [
        Missing("channel_vs_redis", "no redis-server here"),
        Missing("channel_vs_redis_batched", "no redis-server here"),
        Missing("channel_vs_ray_batched", NOT_IN_QUICK),
    ]


def test_capture_rows_run_small() -> None:
    light = ("pickle", "cloudpickle", "numpy_save")
    found = measure_capture(rounds=1, scale=0.01, shapes=("arrays",), peers=light)
    names = [f"arrays_{figure}_vs_{peer}" for peer in light for figure in ("stall", "durable", "written")]
    assert list(rows_of(found)) == names and len(found) == len(names)


def test_store_rows_run_small_and_name_a_package_that_is_missing() -> None:
    peers: dict[str, PeerOf] = {
        "append": ("appending", lambda: Appending(250), None),
        "nobody": ("nobody", lambda: Steps(ABSENT, "import"), 1.0),
    }
    found = measure_steps(peers, rounds=2, steps=12)
    rows = rows_of(found)
    assert set(rows) == {"store_seconds_vs_append", "store_bytes_vs_append"}
    assert rows["store_bytes_vs_append"].samples_baseline == [250.0, 250.0]
    assert [each.name for each in found if isinstance(each, Missing)] == [
        "store_seconds_vs_nobody",
        "store_bytes_vs_nobody",
    ]


def test_a_peer_that_loses_a_message_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Losing(Appending):
        def numbers(self) -> list[int]:
            return super().numbers()[1:]

    monkeypatch.setattr(bench.peers.threads, "_Ours", lambda _folder: Appending(250))
    with pytest.raises(AssertionError, match="loser has not kept each message once"):
        measure_steps({"loser": ("losing", lambda: Losing(250), None)}, rounds=1, steps=4)


def test_overhead_rows_name_a_peer_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    small: dict[str, Any] = {"clock": "", "rounds": 1, "spell": 0.1, "keys": 10}
    found = measure_counting("nobody", "", lambda: Child(ABSENT, "server"), **small)
    assert found == [
        Missing("overhead_1s_vs_nobody", "no such server here"),
        Missing("overhead_100ms_vs_nobody", "no such server here"),
    ]
    monkeypatch.setenv("CUTLINE_BENCH_FLINK", "no-such-python")
    assert [type(each) for each in measure_flink()] == [Missing, Missing]


def test_overhead_rows_run_small_and_count_their_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    class Steady:
        def ask(self, events: int, keys: int, interval: float) -> dict[str, float]:
            return {"rate": 40_000.0}

    def measured() -> list[Row | Missing]:
        small: dict[str, Any] = {"clock": "from then to then", "rounds": 1, "spell": 0.5, "keys": 10}
        peer: Any = Steady
        return measure_counting("steady", "a fake", peer, **small)

    monkeypatch.setattr(bench.peers.counting, "_INTERVALS", (("1s", 0.1), ("100ms", 0.05)))
    rows = rows_of(measured())
    assert list(rows) == ["overhead_1s_vs_steady", "overhead_100ms_vs_steady"]
    note = rows["overhead_1s_vs_steady"].note
    assert "ours took " in note and note.endswith("the peer's from then to then")
    monkeypatch.setattr(Trigger, "_take_all", lambda _self: None)
    with pytest.raises(AssertionError, match="1 of 1 spells had no checkpoint"):
        measured()


def test_the_clock_of_a_counter_that_stands_still_ends() -> None:
    with pytest.raises(TimeoutError, match="our counter, of 9 events: not done after 0 s, but 3"):
        polled(lambda: 3, lambda _found: False, "our counter, of 9 events", patience=0)
    assert polled(lambda: 4, lambda found: found == 4, "") == 4
