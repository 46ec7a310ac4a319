"""Messages: exact, refused with a path, and loadable wherever the classes are."""

from __future__ import annotations

import enum
import os
import pickle
import socket
import sqlite3
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutline.errors import CannotCapture, CannotRestore, ClassMissing
from cutline.participant.capture import Capturer
from cutline.participant.pickling import dumps, loads
from tests.participant.images import through_message


class Mood(enum.Enum):
    """Travels by name."""

    GOOD = 1


class Sender:
    """Its pickling sends something itself."""

    def __reduce__(self) -> Any:
        dumps({"inner": np.arange(4), "more": [Mood.GOOD]}, participant="p", where="inner")
        return Sender, ()


class Plain:
    """An object with attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(_values)
def test_plain_values(value: Any) -> None:
    assert through_message(value) == value


@given(st.lists(st.integers(0, 3000), max_size=5), st.booleans())
def test_arrays_of_any_size(sizes: list[int], as_view: bool) -> None:
    value = [np.arange(size * 2.0)[:: 2 if as_view else 1] for size in sizes]
    received = through_message(value)
    assert [one.tolist() for one in received] == [one.tolist() for one in value]


def test_what_was_read_only_stays_so() -> None:
    value = np.arange(10_000)
    value.flags.writeable = False
    assert not through_message(value).flags.writeable
    assert through_message({"w": np.arange(10_000)})["w"].flags.writeable


def test_from_a_view_of_the_wire() -> None:
    payload = dumps([np.arange(1000), "x"], participant="p", where="m")
    received = loads(memoryview(payload), participant="p")
    assert received[0].sum() == 499500 and received[1] == "x"
    assert loads(memoryview(dumps([1], participant="p", where="m")), participant="p") == [1]


def test_classes_go_by_name() -> None:
    payload = dumps([Mood.GOOD, Plain(x=1)], participant="p", where="m")
    mood, plain = loads(payload, participant="p")
    assert mood is Mood.GOOD and plain.x == 1
    assert len(payload) < 150


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [threading.Lock()]}, r"m\['a'\]\[0\]"),
        ({"f": lambda: None}, r"m\['f'\]"),
        (Plain(clients={"a": Plain(lock=threading.Lock())}), r"m\.clients\['a'\]\.lock"),
        ((1, {"module": sys}), r"m\[1\]\['module'\]"),
        ([Plain(f=Plain)] + [Plain(g=(i for i in [1]))], r"m\[1\]\.g"),
    ],
)
def test_refusals_name_the_path(value: Any, path: str) -> None:
    with pytest.raises(CannotCapture, match=path) as refused:
        dumps(value, participant="alice", where="m")
    assert refused.value.facts["participant"] == "alice"
    # The next message goes.
    assert through_message([1, Plain(x=2)])[0] == 1


def _rays_own() -> tuple[Any, Any]:
    """Objects of classes that look like Ray's, without Ray."""
    made = []
    for module, name in (("ray._raylet", "ObjectRef"), ("ray.actor", "ActorHandle")):
        kind = type(name, (), {"__module__": module, "__reduce__": lambda self: (str, ("gone",))})
        made.append(kind())
    return made[0], made[1]


@pytest.mark.parametrize("index", (0, 1))
def test_rays_own_handles_are_refused_though_they_pickle(index: int) -> None:
    # Other tests of the run may have loaded the real one.
    loaded = "ray" in sys.modules
    value = Plain(peers={"a": [_rays_own()[index]]})
    with pytest.raises(CannotCapture, match=r"m\.peers\['a'\]\[0\].*cluster"):
        dumps(value, participant="p", where="m")
    with pytest.raises(CannotCapture, match=r"self\.peers\['a'\]\[0\].*cluster"):
        Capturer("p").capture(value, number=1, against=None)
    assert ("ray" in sys.modules) == loaded


def test_types_of_the_programs_own_way() -> None:
    reference, _ = _rays_own()
    capturer = Capturer("p", persistent={"ray._raylet:ObjectRef": lambda shown: (str, ("instead",))})
    captured = capturer.capture(Plain(r=reference), number=1, against=None)
    assert b"instead" in bytes(captured.pieces[1].content or b"")


class Buffered:
    """Hands its bytes over as pickle would have large ones: beside the pickle."""

    def __init__(self, content: Any) -> None:
        self.content = bytes(content)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Buffered, (pickle.PickleBuffer(self.content),)


def test_buffers_of_objects_that_pickle_themselves() -> None:
    """A message has its own buffers, not those of the ones before it."""
    for number in range(4):
        content = bytes([number]) * (100 + number)
        received = through_message([Buffered(content), number])
        assert received[0].content == content
        arrays = through_message([Buffered(content), np.full(5000, number), Buffered(b"x" * 9000)])
        assert (arrays[0].content, arrays[2].content, arrays[1][7]) == (content, b"x" * 9000, number)
        assert len(dumps([number], participant="p", where="m")) < 30


async def _half_run() -> None:
    """A coroutine that nobody awaits."""


def _of_this_process() -> Iterator[tuple[str, Any]]:
    with socket.socket() as connection, sqlite3.connect(":memory:") as database:
        yield from (("socket", connection), ("Connection", database))
    coroutine = _half_run()
    yield "coroutine, which is half-run code", coroutine
    coroutine.close()
    yield "generator, which is half-run code", (number for number in [1])
    with open(os.devnull) as file, open(os.devnull, "rb", buffering=0) as unbuffered:
        yield from (("TextIOWrapper", file), ("an open file", unbuffered))
    yield "lock", threading.Lock()
    yield "local", threading.local()
    yield "the module sys", sys
    yield "frame", sys._getframe()


def test_what_belongs_to_this_process_alone() -> None:
    for what, value in _of_this_process():
        hint = rf"\['deep'\]\[1\]: .*{what}.*cutline\.transient"
        with pytest.raises(CannotCapture, match="m" + hint):
            dumps({"deep": [0, value]}, participant="p", where="m")
        with pytest.raises(CannotCapture, match=r"self\.held" + hint) as refused:
            Capturer("p").capture(Plain(held={"deep": [0, value]}), number=1, against=None)
        assert refused.value.facts["path"] == "self.held['deep'][1]"


def test_a_message_within_a_message() -> None:
    received = through_message([np.arange(5), Sender(), np.arange(5000)])
    assert type(received[1]) is Sender and received[2].size == 5000


def test_threads_do_not_mix() -> None:
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for size in range(200):
                received = through_message([number, np.full(size * 10, number), Plain(n=number)])
                assert received[0] == number == received[2].n and (received[1] == number).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_class_that_the_receiver_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = types.ModuleType("a_module_that_goes")
    exec("class Draft: pass", vars(gone))
    monkeypatch.setitem(sys.modules, gone.__name__, gone)
    payload = dumps(gone.Draft(), participant="p", where="m")
    monkeypatch.delitem(sys.modules, gone.__name__)
    with pytest.raises(ClassMissing, match="a_module_that_goes:Draft"):
        loads(payload, participant="bob")


def test_damaged_bytes() -> None:
    with pytest.raises(CannotRestore, match="bob"):
        loads(dumps([1, 2], participant="p", where="m")[:-3], participant="bob")
