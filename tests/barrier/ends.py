"""Ends of channels for the tests of `channel`."""

from __future__ import annotations

from collections import deque

from cutline.barrier import Frame, Incoming, Member, Outgoing
from cutline.barrier.channel import WINDOW

A, B = Member("A", 1), Member("B", 2)


def sender(*sizes: int, window: int = WINDOW) -> Outgoing:
    """A sender that has cut a frame of each size, linked, nothing transmitted."""
    end = Outgoing(B, window=window)
    for size in sizes:
        end.push([b"m"] * size)
        end.cut()
    end.link_opened()
    return end


def frames(*sizes: int) -> list[Frame]:
    return list(sender(*sizes).frames)


def receiver(*sizes: int) -> Incoming:
    """A receiver that has received a frame of each size and processed nothing."""
    end = Incoming(A)
    for frame in frames(*sizes):
        assert end.arrived(frame)
    return end


def ranges(found: list[Frame] | deque[Frame] | tuple[Frame, ...]) -> list[tuple[int, int]]:
    return [(frame.first, frame.last) for frame in found]
