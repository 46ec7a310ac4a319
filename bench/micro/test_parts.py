"""The parts that each message and each checkpoint goes through, alone, by pytest-benchmark.

``make bench-micro`` prints them; the report of ``make bench`` and ``make bench-quick`` has them too. What a
part is stands in ``extra_info["what"]``. Nothing is judged: these are times, and say where those of the rows
go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cutline.barrier import Endpoint, LocalSnapshot, Mark, Member, Outgoing, Stamp
from cutline.barrier.actions import Capture
from cutline.barrier.channel import WINDOW
from cutline.barrier.events import AtBoundary, FrameArrived, LinkOpened, MarkerArrived, Released
from cutline.barrier.messages import Frame
from cutline.barrier.wire import pack_frame, pack_marker, unpack
from cutline.participant.capture import Capturer
from cutline.participant.messages import pack_arguments, unpack_arguments

__all__ = ()

A, B = Member("A", 1), Member("B", 2)
STAMP = Stamp("run", 1, B, A)
MARKS = (Mark(1, 100, False),)
CHANNELS = 8
SMALL = {"name": "ann", "cash": 1000, "history": [f"message {number}" for number in range(100)]}


def _frame() -> Frame:
    """A hundred messages of 100 bytes."""
    end = Outgoing(A, window=WINDOW)
    end.push([bytes(100)] * 100)
    end.cut()
    (frame,) = end.frames
    return frame


def _endpoint(*peers: Member) -> Endpoint:
    end = Endpoint(A, "run", 1, LocalSnapshot(0, 0, None))
    for peer in peers:
        end.handle(Released(peer, [b"m"]))
        end.handle(LinkOpened(peer))
    return end


def _measured(
    benchmark: Any,
    what: str,
    target: Callable[..., Any],
    setup: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]] | None = None,
) -> Any:
    """Runs it many times; ``setup`` makes what each run uses up."""
    benchmark.extra_info["what"] = what
    if setup is None:
        return benchmark(target)
    return benchmark.pedantic(target, setup=setup, rounds=2000, warmup_rounds=50)


def test_frame_packed(benchmark: Any) -> None:
    """To bytes."""
    frame = _frame()
    packet = _measured(benchmark, "pack a frame, 100 x 100 B", lambda: pack_frame(STAMP, (), 0, frame))
    assert unpack(packet) == FrameArrived(STAMP, (), 0, frame)


def test_frame_unpacked(benchmark: Any) -> None:
    """From bytes, every field looked at."""
    frame = _frame()
    packet = pack_frame(STAMP, (), 0, frame)
    event = _measured(benchmark, "unpack a frame, 100 x 100 B", lambda: unpack(packet))
    assert event == FrameArrived(STAMP, (), 0, frame)


def test_frame_arrives(benchmark: Any) -> None:
    """Through the automaton: numbers, digest, mailbox; then processed to its end."""
    event = FrameArrived(STAMP, (), 0, _frame())

    def arrive(end: Endpoint) -> Endpoint:
        end.handle(event)
        end.consumed()
        return end

    _measured(
        benchmark, "a frame arrives and is consumed, 100 x 100 B", arrive, lambda: ((_endpoint(B),), {})
    )
    end = arrive(_endpoint(B))
    assert end.head is None


def test_marker_packed_and_unpacked(benchmark: Any) -> None:
    """Both ways."""
    event = _measured(benchmark, "pack and unpack a marker", lambda: unpack(pack_marker(STAMP, MARKS, 0)))
    assert event == MarkerArrived(STAMP, MARKS, 0)


def test_marker_arrives(benchmark: Any) -> None:
    """What a marker starts: the table of the channels is taken, and markers go out."""
    peers = [Member(f"P{number}", number) for number in range(CHANNELS)]
    stamp = Stamp("run", 1, peers[0], A)

    def arrive(end: Endpoint) -> list[Any]:
        end.handle(MarkerArrived(stamp, (Mark(1, 0, False),), 0))
        return end.handle(AtBoundary())

    what = f"a marker arrives, the cut of {CHANNELS} channels"
    _measured(benchmark, what, arrive, lambda: ((_endpoint(*peers),), {}))
    assert any(isinstance(action, Capture) for action in arrive(_endpoint(*peers)))


@pytest.mark.parametrize(
    ("kind", "argument"), [("plain", b"x" * 100), ("pickled", SMALL)], ids=["plain", "pickled"]
)
def test_arguments(benchmark: Any, kind: str, argument: Any) -> None:
    """Packed and unpacked, as a call's are."""

    def there_and_back() -> Any:
        packed = pack_arguments((argument,), {}, participant="a", where="a call")
        return unpack_arguments(packed, participant="a", live={})

    args, kwargs = _measured(benchmark, f"arguments of a call packed and unpacked, {kind}", there_and_back)
    assert list(args) == [argument] and kwargs == {}


class _Agent:
    """A small state."""

    def __init__(self) -> None:
        self.count = 0
        self.known = {f"key {number}": number for number in range(1000)}


class _Painter:
    """A large array."""

    def __init__(self) -> None:
        self.image = np.zeros((256, 1024), dtype=np.float32)


def _captures(benchmark: Any, what: str, state: Any, change: Callable[[int], None]) -> None:
    capturer = Capturer("bench")
    capturer.capture(state, number=1, against=None)
    capturer.committed(1)
    taken = 1

    def changed() -> tuple[tuple[Any, ...], dict[str, Any]]:
        nonlocal taken
        if taken > 1:
            capturer.committed(taken)
        taken += 1
        change(taken)
        return (), {}

    def capture() -> Any:
        return capturer.capture(state, number=taken, against=taken - 1)

    captured = _measured(benchmark, what, capture, changed)
    assert captured.stall > 0


def test_small_state_captured(benchmark: Any) -> None:
    """A dict of a thousand entries, pickled again."""
    agent = _Agent()

    def change(number: int) -> None:
        agent.known["key 7"] = number

    _captures(benchmark, "capture of a dict of 1,000 entries, 1 changed", agent, change)


def test_array_captured(benchmark: Any) -> None:
    """An array of a mebibyte, one page written."""
    painter = _Painter()

    def change(number: int) -> None:
        painter.image[number % 256, 0] += 1

    _captures(benchmark, "capture of an array of 1 MiB, 1 page changed", painter, change)
