"""A snapshot of many participants costs 3 x participants + open channels, in messages, and nothing else."""

from __future__ import annotations

from collections import Counter

import pytest

from cutline.barrier import Member

from .scale import Crowd, frame_costs, main, mesh, sparse, take_all


@pytest.mark.parametrize("channels", [sparse(10), sparse(100), mesh(12)], ids=["10", "100", "mesh"])
def test_every_count_is_what_the_formula_says(channels: dict[Member, list[Member]]) -> None:
    crowd = Crowd(channels)
    found = take_all(crowd)
    assert [each.what for each in found] == ["at rest", "in flight", "recovery", "after it"]
    assert not [each.fault for each in found if each.fault]
    members, edges = len(channels), sum(map(len, channels.values()))
    assert found[0].sent == Counter(initiate=members, marker=edges, prepared=members, settled=members)
    assert [each.in_flight for each in found] == [0, 2 * edges, 2 * edges, 0]


def test_all_channels_are_different_ones() -> None:
    for count in (10, 11, 100, 1000):
        channels = sparse(count)
        assert len(channels) == count
        assert all(len({me, *peers}) == 4 for me, peers in channels.items())


class Repeating(Crowd):
    """Its coordinator says everything to one participant twice."""

    def _initiate(self) -> list[tuple[Member, object]]:  # type: ignore[override]
        said = super()._initiate()
        self.sent["initiate"] += 1
        return [*said, said[0]]


def test_one_message_too_many_is_told() -> None:
    found = take_all(Repeating(sparse(10)))
    assert found[0].fault == (
        "10 participants, 30 channels, at rest: 11 of kind initiate, the formula says 10"
    )


def test_a_fault_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tests.simulation.scale.frame_costs", lambda messages: frame_costs(messages, 1, 10))
    assert main(["--sizes", "10", "--mesh", "5"]) == 0
    assert capsys.readouterr().out.endswith("every count is what the formula says\n")
    monkeypatch.setattr("tests.simulation.scale.Crowd", Repeating)
    assert main(["--sizes", "10", "--mesh", "5"]) == 1
    out = capsys.readouterr().out
    assert "WRONG: 5 participants, 20 channels, at rest: 6 of kind initiate, the formula says 5" in out
    assert out.endswith("the counts differ from the formula\n")


@pytest.mark.parametrize("messages", [1, 10])
def test_costs_are_of_frames_that_arrived(messages: int) -> None:
    cost = frame_costs(messages, rounds=1, timed=20)
    assert cost.messages == messages and min(cost.sender, cost.receiver, cost.packing) > 0
