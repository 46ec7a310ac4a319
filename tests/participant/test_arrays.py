"""Memory that objects share is shared again after a restore and after a message, or refused."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutline.errors import CannotCapture
from cutline.participant.memory import address, window
from tests.participant.images import through_image, through_message

WAYS = [
    pytest.param(lambda value: through_image(value, 1), id="regions"),
    pytest.param(lambda value: through_image(value, 1 << 20), id="stream"),
    pytest.param(through_message, id="message"),
]
Way = Callable[[Any], Any]
BOTH: list[Way] = [lambda value: through_image(value, 1), through_message]
ways = pytest.mark.parametrize("way", WAYS)


class Unit(np.ndarray):
    """A subclass with an attribute and no pickling of its own."""

    unit: Any

    def __array_finalize__(self, source: Any) -> None:
        self.unit = getattr(source, "unit", None)


class Slots(np.ndarray):
    """A subclass with a slot."""

    __slots__ = ("kept",)
    kept: Any


class Numbers(array.array):  # type: ignore[type-arg]
    """An array.array with attributes."""


class Own(np.ndarray):
    """A subclass that pickles itself."""

    def __reduce__(self) -> Any:
        return np.array, (self.tolist(),)


class Counted(ctypes.Structure):
    """A ctypes object that pickles itself."""

    _fields_ = [("of", ctypes.c_double * 300)]


def _subclass_owner() -> tuple[Any, Any]:
    whole = np.ndarray.__new__(Unit, (600,))
    whole[:] = 1
    return whole, np.asarray(whole)[3:]


def _views() -> dict[str, Callable[[], tuple[Any, Any]]]:
    """Pairs of objects over one memory: what is written through the first shows in the second."""

    def owner() -> Any:
        return np.arange(600.0)

    def over_bytearray() -> tuple[Any, Any]:
        memory = bytearray(4800)
        return memory, np.frombuffer(memory, np.uint8)

    def two_over_bytearray() -> tuple[Any, Any]:
        memory = bytearray(4800)
        return np.frombuffer(memory, np.float64), np.frombuffer(memory, np.uint8)[8:]

    def over_array() -> tuple[Any, Any]:
        memory = array.array("d", [1.0] * 600)
        return memory, np.frombuffer(memory)

    def over_ctypes() -> tuple[Any, Any]:
        memory: Any = (ctypes.c_double * 600)()
        return np.ctypeslib.as_array(memory), np.frombuffer(memory, np.uint8)[:4000]

    def over_map() -> tuple[Any, Any]:
        memory = mmap.mmap(-1, 4800)
        return np.frombuffer(memory, np.uint8), np.frombuffer(memory, np.float64)[::-1]

    def masked() -> tuple[Any, Any]:
        memory = owner()
        return memory, np.ma.array(memory, mask=False, copy=False)

    def scalar() -> tuple[Any, Any]:
        rows = np.zeros(300, [("a", "f8"), ("b", "f8")])
        return rows["a"][5:6], rows[5]

    def unrelated_owners() -> tuple[Any, Any]:
        memory = owner()
        start = address(memory)
        _KEPT.append(memory)
        return window(start, start + 3000), window(start + 8, start + 4800)

    def owner_and_stranger() -> tuple[Any, Any]:
        memory = owner()
        start = address(memory)
        return memory, window(start, start + 4800)

    return {
        "slice": lambda: (a := owner(), a[3:])[0:2],
        "reversed": lambda: (a := owner(), a[::-1])[0:2],
        "strided": lambda: (a := owner(), a[::7])[0:2],
        "interleaved": lambda: (a := owner())[:0].size or (a[::2], a[:9]),
        "transposed": lambda: (a := np.arange(600.0).reshape(20, 30), a.T)[0:2],
        "fortran": lambda: (a := np.asfortranarray(np.ones((20, 30))), a[2:, 3:])[0:2],
        "strange_order": lambda: (a := np.ones((5, 6, 20)).transpose(1, 0, 2).copy("K"), a[1:])[0:2],
        "other_type": lambda: (a := owner(), a.view(np.int32))[0:2],
        "dates": lambda: (a := np.zeros(600, "M8[s]"), a[1:].view("i8"))[0:2],
        "window": lambda: (a := owner(), np.lib.stride_tricks.sliding_window_view(a, 3))[0:2],
        "broadcast": lambda: (a := owner()[:2], np.broadcast_to(a, (3, 2)))[0:2],
        "memoryview": lambda: (a := owner(), memoryview(a))[0:2],
        "memoryview_2d": lambda: (a := np.ones((20, 30)), a.data)[0:2],
        "memoryview_of_view": lambda: (a := owner(), memoryview(a[7:]))[0:2],
        "bytearray": over_bytearray,
        "two_over_bytearray": two_over_bytearray,
        "array": over_array,
        "ctypes": over_ctypes,
        "map": over_map,
        "subclass_owner": _subclass_owner,
        "masked": masked,
        "scalar": scalar,
        "unrelated_owners": unrelated_owners,
        "owner_and_stranger": owner_and_stranger,
    }


_KEPT: list[Any] = []
VIEWS = _views()


def _bytes(shown: Any) -> bytes:
    return bytes(shown.tobytes()) if hasattr(shown, "tobytes") else bytes(shown)


def _scribble(shown: Any, value: int) -> None:
    if isinstance(shown, np.ndarray):
        shown[...] = np.full(shown.shape, value).astype(shown.dtype)
    else:
        memoryview(shown).cast("B")[:] = bytes([value]) * memoryview(shown).nbytes


@ways
@pytest.mark.parametrize("backwards", (False, True))
@pytest.mark.parametrize("name", sorted(VIEWS))
def test_shared_again(name: str, backwards: bool, way: Way) -> None:
    first, second = VIEWS[name]()
    value = {"b": second, "a": first} if backwards else {"a": first, "b": second}
    restored = way(value)
    again = restored["a"], restored["b"]
    assert [type(shown) for shown in again] == [type(shown) for shown in (first, second)]
    assert [_bytes(shown) for shown in again] == [_bytes(shown) for shown in (first, second)]
    before = _bytes(second)
    _scribble(again[0], 77)
    assert _bytes(second) == before, "the restored memory is the live one"
    _scribble(first, 77)
    assert _bytes(again[1]) == _bytes(second) != before


@ways
def test_views_of_objects(way: Way) -> None:
    memory = np.array([[1], "x", None, {2: 3}], object)
    restored = way({"a": memory, "part": memory[1:3], "back": memory[::-1], "square": memory.reshape(2, 2)})
    restored["a"][1] = "changed"
    assert restored["part"].tolist() == ["changed", None]
    assert restored["back"].tolist() == [{2: 3}, None, "changed", [1]]
    assert restored["square"].tolist() == [[[1], "changed"], [None, {2: 3}]]


@ways
def test_an_array_of_objects_may_hold_itself(way: Way) -> None:
    memory = np.empty(3, object)
    memory[0], memory[1] = memory, memory[1:]
    restored = way({"view": memory[1:], "a": memory})
    assert restored["a"][0] is restored["a"]
    assert restored["a"][1].base is restored["a"]


@ways
def test_attributes_and_flags_of_subclasses(way: Way) -> None:
    metres = np.arange(3.0).view(Unit)
    metres.unit = {"name": "m"}
    metres.flags.writeable = False
    restored = way([metres, metres.unit])
    assert type(restored[0]) is Unit and restored[0].unit is restored[1]
    assert not restored[0].flags.writeable
    assert restored[0].tolist() == [0, 1, 2]


@ways
def test_slots_and_attributes_of_subclasses(way: Way) -> None:
    slotted: Any = np.arange(4.0).view(Slots)
    slotted.kept = [1]
    numbers: Any = Numbers("i", range(100))
    numbers.note = "n"
    slotted, numbers = way((slotted, numbers))
    assert slotted.kept == [1] and type(slotted) is Slots
    assert numbers.note == "n" and type(numbers) is Numbers and numbers[99] == 99


@ways
def test_a_mapped_file_becomes_memory(way: Way, tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "file", np.int64, "w+", shape=(100,))
    mapped[:] = range(100)
    restored = way({"m": mapped, "part": mapped[10:20]})
    restored["m"][10] = -1
    assert restored["part"][0] == -1 and mapped[10] == 10
    assert restored["m"].tolist()[11:] == list(range(11, 100))


@ways
def test_a_writable_view_of_a_read_only_owner(way: Way) -> None:
    memory = np.arange(10)
    view = memory[2:]
    memory.flags.writeable = False
    restored = way({"a": memory, "v": view})
    assert not restored["a"].flags.writeable and restored["v"].flags.writeable
    restored["v"][0] = 50
    assert restored["a"][2] == 50


@pytest.mark.parametrize("region_min", (1, 1 << 20))
def test_restored_owners_own(region_min: int) -> None:
    restored = through_image({"a": np.arange(100.0), "f": np.ones((9, 9), order="F")}, region_min)
    assert restored["a"].flags.owndata and restored["f"].flags.owndata
    restored["a"].resize(200, refcheck=False)


def test_arrays_of_messages_own_and_are_writable() -> None:
    received = through_message([np.arange(5), np.arange(5000.0)])
    assert all(shown.flags.owndata and shown.flags.writeable for shown in received)


def test_a_slice_travels_without_the_rest() -> None:
    from cutline.participant.pickling import dumps

    memory = np.zeros(1 << 20)
    assert len(dumps(memory[5:10], participant="p", where="m")) < 400
    assert len(dumps([memory[5:10], memory[7:5000]], participant="p", where="m")) < 50_000
    assert len(dumps([memory[5:10], memory[100:110]], participant="p", where="m")) < 800


@ways
def test_sharing_that_cannot_be_kept_is_refused(way: Way) -> None:
    memory = np.arange(500.0)
    with pytest.raises(CannotCapture, match=r"\['own'\].*shares"):
        way({"own": memory.view(Own), "plain": memory})
    counted: Any = Counted()
    with pytest.raises(CannotCapture, match="shares"):
        way({"a": np.frombuffer(counted), "c": counted})
    assert way({"own": memory.view(Own)})["own"].tolist() == memory.tolist()
    assert list(way({"c": counted})["c"].of) == [0.0] * 300


@ways
def test_refused_views_name_their_path(way: Way) -> None:
    mixed = np.zeros(3, [("o", object), ("x", "f8")])
    with pytest.raises(CannotCapture, match=r"\['field'\]"):
        way({"all": [1], "field": mixed["x"]})
    with pytest.raises(CannotCapture, match=r"\['m'\]\.deep"):
        way({"m": _Deep(np.arange(10).data[::2])})
    restored = way({"mixed": mixed})["mixed"]
    assert restored.dtype == mixed.dtype and restored["o"].tolist() == [0, 0, 0]


class _Deep:
    def __init__(self, deep: Any) -> None:
        self.deep = deep


def test_tensors_stay_shared_with_arrays() -> None:
    torch = pytest.importorskip("torch")
    for way in BOTH:
        memory = np.arange(12.0, dtype=np.float32)
        whole = torch.from_numpy(memory)
        alone = torch.nn.Parameter(torch.ones(3, 4))
        alone.grad = torch.full((3, 4), 2.0)
        half = torch.arange(10).to(torch.bfloat16)
        value = {
            "a": memory, "t": whole, "part": whole[4:8], "p": alone, "row": alone.detach()[1], "half": half,
            "n": half[2:].view(torch.int16).numpy(), "empty": torch.empty(0),
        }  # fmt: skip
        restored = way(value)
        restored["a"][5] = -1
        assert restored["t"][5] == -1 and restored["part"][1] == -1 and memory[5] == 5
        assert isinstance(restored["p"], torch.nn.Parameter) and restored["p"].requires_grad
        assert torch.equal(restored["p"].grad, alone.grad)
        with torch.no_grad():
            restored["p"][1, 2] = 9
        assert restored["row"][2] == 9
        restored["half"][2] = 0
        assert restored["n"][0] == 0 and torch.equal(restored["half"][3:], half[3:])
        with pytest.raises(CannotCapture, match=r"\['made'\]"):
            way({"made": alone * 2})


@ways
def test_a_bytearray_shown_through_ctypes(way: Way) -> None:
    owner = bytearray(5000)
    shown: Any = (ctypes.c_ubyte * 4000).from_buffer(owner, 8)
    restored = way({"owner": owner, "shown": np.frombuffer(shown, "u2", 900, 2)})
    restored["owner"][10] = 7
    assert restored["shown"][0] == 7 and owner[10] == 0


@ways
def test_views_of_strings_of_any_length(way: Way) -> None:
    for order in ("C", "F"):
        texts: Any = np.array(
            [["a", "b" * 40, ""], ["c", "d", "e" * 300]], np.dtypes.StringDType(), order=order
        )
        views = [texts, texts.T, texts[::-1, 1:], texts[None], texts[1], texts[:, 0], texts[:0]]
        restored = way(views)
        assert [each.tolist() for each in restored] == [each.tolist() for each in views]
        restored[1][2, 0] = "z" * 50
        assert restored[0][0, 2] == restored[3][0, 0, 2] == restored[2][1, 1] == "z" * 50
        assert texts[0, 2] == ""


class Lent:
    """Memory that lives as long as this object, and is filled with something else when it goes."""

    # So that the tests may look at what should not be looked at.
    every: ClassVar[list[np.ndarray[Any, Any]]] = []

    def __init__(self, value: int) -> None:
        self.memory = np.full(3000, value, np.uint8)
        self.every.append(self.memory)
        self.__array_interface__ = self.memory.__array_interface__

    def __del__(self) -> None:
        self.memory[:] = 255


class Making:
    """Makes an array for each pickling, over memory that nobody else holds."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __getstate__(self) -> dict[str, Any]:
        return {"made": np.asarray(Lent(self.value))}


@ways
def test_what_is_made_for_the_pickling_lives_until_it_is_copied(way: Way) -> None:
    restored = way([Making(3), Making(4)])
    assert [each.made.tolist() for each in restored] == [[3] * 3000, [4] * 3000]
    gc.collect()
    assert all((memory == 255).all() for memory in Lent.every)
    Lent.every.clear()


@ways
def test_memory_that_is_shown_is_held(way: Way) -> None:
    """A bytearray does not leave its memory while an array shows it, before and after."""
    owner = bytearray(5000)
    shown: list[Any] = [owner, np.frombuffer(owner, "u2", 1000, 8)]
    restored = way(shown)
    for value in (shown[0], restored[0]):
        with pytest.raises(BufferError):
            value.extend(bytes(100_000))
    restored[1][0] = 0x0101
    assert restored[0][8] == 1
    del restored[1]
    restored[0].extend(bytes(100_000))


_places = st.tuples(st.integers(0, 40), st.integers(0, 40), st.sampled_from((1, 2, -1, -3)))


@settings(max_examples=60, deadline=None)
@given(st.lists(_places, min_size=1, max_size=6), st.integers(0, 2**32))
def test_any_set_of_slices(places: list[tuple[int, int, int]], seed: int) -> None:
    """Whatever slices two owners have: writes through one reach exactly those they reached before."""
    draw = np.random.default_rng(seed)
    owners = [draw.random(40), draw.random((5, 8))]
    shown = [draw.choice(2) for _ in places]
    value = [owners[n].reshape(-1)[slice(*place)] for n, place in zip(shown, places, strict=True)]
    for way in BOTH:
        restored = way(value)
        for one, other in zip(value, restored, strict=True):
            assert one.tobytes() == other.tobytes()
        before = [one.copy() for one in value]
        for index in range(len(value)):
            for side in (value, restored):
                side[index][...] = index
            assert [one.tolist() for one in value] == [one.tolist() for one in restored]
        for one, old in zip(value, before, strict=True):
            one[...] = old


@ways
@pytest.mark.parametrize("form", ["S0", "U0", "V0"])
def test_elements_without_a_byte(way: Way, form: str) -> None:
    rows = np.zeros(3, [("nothing", form), ("x", "i4")])
    restored = way([rows, rows["nothing"], np.ndarray((2, 3), form)])
    assert [each.dtype for each in restored] == [rows.dtype, np.dtype(form), np.dtype(form)]
    assert [each.shape for each in restored] == [(3,), (3,), (2, 3)]
