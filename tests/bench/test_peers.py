"""Rows against peers: those whose peer is absent say so, and those with light peers run small."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import bench.bench_peers_channel
import bench.peers.counting
import bench.peers.threads
from bench.bench_peers_capture import _compare
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
from bench.row import NOT_IN_QUICK, Failed, Missing, Row
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
        with pytest.raises(RuntimeError, match="the peer has had enough") as error:
            child.ask(word="end")
        assert str(error.value).startswith(f'{ABSENT} there, which was asked {{"word": "end"}}, ended:\n')


def test_a_process_that_hangs_is_ended_with_what_it_has_started() -> None:
    with Child(ABSENT, "there") as child:
        child.patience = 0.5
        with pytest.raises(TimeoutError) as error:
            child.ask(word="hang")
        asked = f'{ABSENT} there was asked {{"word": "hang"}}'
        assert str(error.value) == f"{asked} and has not answered in 0.5 s"
        child.patience = 30
        with pytest.raises(RuntimeError, match="ended"):
            # Its pipe has no writer left: what it had started is gone as well.
            child.hear()


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

    with Peers() as peers:
        assert peers.open("good", Peer) is not None
        assert peers.open("broken", broken) is None
    assert closed == ["closed"]
    assert peers.rows({"x": "good", "y": "broken"}) == [Failed("y", "AssertionError: lost a message")]


def test_a_side_that_fails_costs_no_other_one() -> None:
    calls: list[str] = []

    def take(name: str) -> int:
        calls.append(name)
        if name == "bad" and calls.count("bad") == 2:
            raise ConnectionError("no answer from /tmp/x/socket\nand more")
        return len(calls)

    with Peers() as peers:
        sides: dict[str, Callable[[], int]] = {"ours": partial(take, "ours")}
        for name in ("good", "bad"):
            sides[name] = peers.side(name, partial(take, name))
        sides["bad again"] = peers.side("bad", partial(take, "bad again"))
        samples = in_turns(4, sides)
    assert {name: len(found) for name, found in samples.items()} == {"ours": 4, "good": 4}
    assert calls.count("bad") == 2 and calls.count("bad again") <= 2
    assert peers.failed == {"bad": "ConnectionError: no answer from .../socket"}
    assert peers.rows({"x_vs_bad": "bad"}) == [Failed("x_vs_bad", peers.failed["bad"])]


def test_an_error_on_our_side_ends_the_module() -> None:
    def lost() -> int:
        raise AssertionError("lost")

    with pytest.raises(AssertionError, match="lost"), Peers() as peers:
        in_turns(1, {"ours": lost, "peer": peers.side("peer", lambda: 1)})


def test_who_holds_something_else_than_the_others_has_failed() -> None:
    with Peers() as peers:
        _compare(peers, "x", {"same": lambda: "x", "other": lambda: "y"})
        assert peers.failed == {"other": "AssertionError: other holds something else than the other sides"}
        with pytest.raises(AssertionError, match="no side holds the same as ours"):
            _compare(peers, "x", {"other": lambda: "y"})


def test_a_peer_that_does_not_close_has_failed() -> None:
    class Stuck:
        def close(self) -> None:
            raise OSError("stuck")

    with Peers() as peers:
        peers.open("stuck", Stuck)
    assert peers.failed == {"stuck": "OSError: stuck"}


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
    peers: dict[str, PeerOf] = {
        "loser": ("losing", lambda: Losing(250), None),
        "good": ("appending", lambda: Appending(250), None),
    }
    found = measure_steps(peers, rounds=1, steps=4)
    assert list(rows_of(found)) == ["store_seconds_vs_good", "store_bytes_vs_good"]
    reason = "AssertionError: loser has not kept each message once, in order"
    assert found[2:] == [Failed("store_seconds_vs_loser", reason), Failed("store_bytes_vs_loser", reason)]
    monkeypatch.setattr(bench.peers.threads, "_Ours", lambda _folder: Losing(250))
    with pytest.raises(AssertionError, match="ours has not kept each message once"):
        measure_steps(peers, rounds=1, steps=4)


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
