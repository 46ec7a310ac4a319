"""Transient attributes: made once per instance and process, never saved, never copied."""

from __future__ import annotations

import copy
import dataclasses
import gc
import os
import pickle
import threading
import weakref
from typing import Any

import pytest

from cutline.participant.capture import check_capturable
from cutline.participant.transient import Transient, transient
from tests.participant.images import through_image


class Client:
    """What must not be in an image."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Agent:
    """A participant with a client."""

    client = transient(Client)

    def __init__(self) -> None:
        self.notes: list[str] = []


class Senior(Agent):
    """A subclass uses the same descriptor."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


@dataclasses.dataclass
class Plain:
    """A dataclass hands the descriptor over as the default of the field."""

    name: str
    client: Any = transient(Client)


class Slotted:
    """Without a weak reference there is nowhere to keep the value."""

    __slots__ = ()
    client = transient(Client)


def test_made_once_per_instance() -> None:
    one, two = Agent(), Agent()
    assert one.client is one.client
    assert one.client is not two.client
    assert vars(one) == {"notes": []}


def test_never_saved_and_made_again() -> None:
    agent = Agent()
    client = agent.client
    check_capturable(agent, "p")
    restored = through_image([agent])[0]
    assert isinstance(restored.client, Client) and restored.client is not client
    assert pickle.loads(pickle.dumps(agent)).client is not client


def test_copies_make_their_own() -> None:
    agent = Agent()
    client = agent.client
    assert copy.deepcopy(agent).client is not client
    assert copy.copy(agent).client is not client
    assert agent.client is client


def test_subclass_without_hash() -> None:
    one, two = Senior(), Senior()
    assert one.client is one.client is not two.client


def test_dataclass_field() -> None:
    plain = Plain("x")
    assert isinstance(plain.client, Client)
    assert through_image(plain).name == "x"


def test_set_and_delete() -> None:
    agent = Agent()
    fake: Any = object()
    agent.client = fake
    assert agent.client is fake
    del agent.client
    assert isinstance(agent.client, Client)
    assert isinstance(Agent.client, Transient)


def test_goes_with_its_instance() -> None:
    agent = Agent()
    gone = weakref.ref(agent.client)
    del agent
    gc.collect()
    assert gone() is None


def test_made_again_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent()
    client = agent.client
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert agent.client is not client


def test_slots_without_weakref_say_so() -> None:
    with pytest.raises(TypeError, match="__weakref__"):
        Slotted().client  # noqa: B018


def test_once_with_many_threads() -> None:
    made: list[object] = []
    slow = threading.Barrier(4)

    class Pool:
        pool = transient(lambda: made.append(1))

    shared = Pool()

    def use() -> None:
        slow.wait()
        shared.pool  # noqa: B018

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
