"""Breaks Cutline on purpose, so that a demonstration can show that its comparison can fail.

``drop-channel-state``: a restore forgets the messages that were queued in the cut. ``forget-dedup``: the
network doubles a frame now and then, and a frame that comes twice is handled twice. Never used unless the
demo's ``--break`` asks for it.
"""

from __future__ import annotations

from typing import Any

from cutline.barrier.actions import EndpointAction, SendFrame
from cutline.barrier.events import EndpointEvent, FrameArrived

from .messages import decode_frame
from .runner import Runner

__all__ = ("sabotage", "MODES")

DOUBLED_EVERY = 40
MODES = ("drop-channel-state", "forget-dedup", "skip-participant")


def sabotage(runner: Runner, mode: str) -> None:
    """Breaks one runner in the way that `mode` names; other modes break other places."""
    if mode == "drop-channel-state":
        _drop_channel_state(runner)
    elif mode == "forget-dedup":
        _forget_dedup(runner)


def _drop_channel_state(runner: Runner) -> None:
    restore = runner.be_restored

    def be_restored(*args: Any) -> None:
        restore(*args)
        endpoint = runner.endpoint
        assert endpoint is not None
        while endpoint.head is not None:
            endpoint.consumed()

    runner.be_restored = be_restored  # type: ignore


def _forget_dedup(runner: Runner) -> None:
    feed, perform = runner.feed, runner._perform
    frames = 0

    def perform_twice(actions: list[EndpointAction]) -> None:
        nonlocal frames
        perform(actions)
        for action in actions:
            if isinstance(action, SendFrame):
                frames += 1
                if frames % DOUBLED_EVERY == 0:
                    perform([action])

    def feed_twice(event: EndpointEvent) -> None:
        twice = False
        if isinstance(event, FrameArrived) and runner.endpoint is not None:
            known = runner.endpoint.incoming.get(event.stamp.sender)
            same_epoch = event.stamp.epoch == runner.endpoint.epoch
            twice = same_epoch and known is not None and event.frame.last <= known.received
        feed(event)
        if twice and isinstance(event, FrameArrived) and runner.phase == "running":
            for message in decode_frame(event.frame.body):
                runner.desk.handle(event.stamp.sender, message)

    runner.feed = feed_twice  # type: ignore
    runner._perform = perform_twice  # type: ignore
