"""More awkward state than the zoo has: memory that is large enough to be a region, shared in every way."""

from __future__ import annotations

import array
import ctypes
import importlib
import mmap
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ("CATALOGUE", "Open", "Slots", "small_zoo", "torch")


try:
    # `make test-tensors` has it; the tests can do without.
    torch: Any = importlib.import_module("torch")
except ImportError:
    torch = None

# Bytes: some pages, and not whole ones.
LARGE = 5 * 4096 + 168
# Their checks are not `same`, they take too long for thousands of captures, or they may be refused.
_LEFT_OUT = {
    *("getstate_setstate", "np_large_odd_size", "conversation"),
    *("defaultdict_lambda", "deep_chain", "closure_shares_list"),
}


class Open:
    """An object whose attributes come and go."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Slots:
    """Two slots, one of them unset at first, and no dict."""

    __slots__ = ("one", "two")

    def __init__(self, one: Any) -> None:
        self.one = one


class _Lent:
    """Says where memory is, and not whose."""

    def __init__(self, shown: Any) -> None:
        self.held = shown
        self.__array_interface__ = shown.__array_interface__


def small_zoo() -> dict[str, Callable[[random.Random], Any]]:
    """The zoo's own values, without those that would be looked at in another way than the rest."""
    zoo: Any = importlib.import_module("tests.inputs.state_zoo")
    return {name: _alike(make) for name, (make, _) in zoo.zoo().items() if name not in _LEFT_OUT}


def _alike(make: Callable[[], Any]) -> Callable[[random.Random], Any]:
    return lambda chance: make()


def _numbers(chance: random.Random, dtype: str = "f4", size: int = LARGE) -> Any:
    filled = np.frombuffer(chance.randbytes(size // 8 * 8), np.uint8) & 0x3F
    return filled.view(dtype)


def plain(chance: random.Random) -> Any:
    return _numbers(chance, chance.choice(("u1", "<i4", ">i2", "f4", "c8", "f2")))


def fortran(chance: random.Random) -> Any:
    return np.asfortranarray(_numbers(chance, "f4", 96 * 56 * 4).reshape(96, 56))


def planes(chance: random.Random) -> Any:
    """A view of an owner that the state does not hold."""
    return _numbers(chance, "i4", 16 * 12 * 28 * 4).reshape(16, 12, 28).transpose(2, 0, 1)[::2, ::-1]


def slices(chance: random.Random) -> Any:
    owner = _numbers(chance)
    return {
        "owner": owner,
        "part": owner[100:4000],
        "odd": owner[1::2],
        "back": owner[::-3],
        "bytes": owner.view("u1")[7:9001],
    }


def parts_alone(chance: random.Random) -> Any:
    """Overlapping parts, their owner gone from the state."""
    owner = _numbers(chance)
    return [owner[: len(owner) // 2], owner[len(owner) // 3 :]]


def windows(chance: random.Random) -> Any:
    owner = _numbers(chance, "f4", 6000)
    shown = np.lib.stride_tricks.sliding_window_view(owner, 9, writeable=True)
    return {"windows": shown, "spread": np.broadcast_to(owner[:50], (3, 50)), "owner": owner}


def structured(chance: random.Random) -> Any:
    made = np.zeros(LARGE // 24, np.dtype([("n", "i4"), ("x", "f8"), ("t", "M8[s]")], align=True))
    made["x"] = _numbers(chance, "f4")[: len(made)]
    return {"r": made, "x": made["x"]}


def times(chance: random.Random) -> Any:
    made = _numbers(chance, "i8").astype("M8[us]")
    made[3] = np.datetime64("NaT")
    return {"t": made, "d": made - made[0], "ints": made.view("i8")[50:]}


def record(chance: random.Random) -> Any:
    fields: Any = [np.arange(900), _numbers(chance)[:900]]
    rec: Any = np.rec
    made = rec.fromarrays(fields, names="n,x")
    return {"r": made, "x": made.x}


def masked(chance: random.Random) -> Any:
    data = _numbers(chance)
    made = np.ma.MaskedArray(data, mask=np.arange(len(data)) % 7 == 0, fill_value=-1)
    return {"m": made, "half": made[: len(data) // 2], "data": data}


def matrix(chance: random.Random) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.matrix(_numbers(chance, "f4", 80 * 64 * 4).reshape(80, 64))


def texts(chance: random.Random) -> Any:
    return [
        np.array([str(n) for n in range(900)]),
        np.array(["a", "é" * 40], np.dtypes.StringDType()),
        np.array([b"x" * 9] * 700),
    ]


def things(chance: random.Random) -> Any:
    inner = _numbers(chance, "i2", 4800)
    made = np.empty((6, 4), object)
    made[:] = 0
    made[0, 0], made[1, 1], made[2] = inner, inner[40:], [[1], "a", None, {"k": inner}]
    return {"objects": made, "column": made[:, 1], "turned": made.T}


def raw(chance: random.Random) -> Any:
    """A bytearray that may grow."""
    return bytearray(chance.randbytes(LARGE))


def shown_raw(chance: random.Random) -> Any:
    """One that may not, as arrays show it."""
    owner = bytearray(chance.randbytes(LARGE))
    return [
        np.frombuffer(owner, "u1")[5:],
        owner,
        np.frombuffer(owner, "<u4", 900, 16),
        memoryview(owner)[9:80],
    ]


def codes(chance: random.Random) -> Any:
    made = array.array("i", range(LARGE // 4))
    return {"a": made, "shown": np.frombuffer(made, "i4")[3:], "alone": array.array("d", range(700))}


def frozen(chance: random.Random) -> Any:
    """What shows bytes is read-only."""
    return {"b": np.frombuffer(chance.randbytes(LARGE), "u2"), "text": chance.randbytes(LARGE)}


def mapped(chance: random.Random) -> Any:
    """Two views of pages that no Python object of the state owns."""
    memory = mmap.mmap(-1, 6 * 4096)
    memory[:] = chance.randbytes(len(memory))
    whole = np.frombuffer(memory, "u1")
    return [whole[100:9000], np.frombuffer(memory, "u4", 2000, 4096)]


def foreign(chance: random.Random) -> Any:
    owner: Any = (ctypes.c_ubyte * LARGE).from_buffer_copy(chance.randbytes(LARGE))
    return (np.frombuffer(owner, "u1"), {"part": np.frombuffer(owner, "u2", 3000, 4)})


def strangers(chance: random.Random) -> Any:
    """Overlapping memory of two owners that say nothing of each other."""
    memory = _numbers(chance, "u1")
    return [np.asarray(_Lent(part)) for part in (memory[40:9040], memory[6000:15000])]


def read_only(chance: random.Random) -> Any:
    owner = _numbers(chance)
    sealed = owner[10:]
    sealed.flags.writeable = False
    alone = _numbers(chance, "u1")
    alone.flags.writeable = False
    return {"owner": owner, "sealed": sealed, "alone": alone, "view": alone[3:9]}


def nothing(chance: random.Random) -> Any:
    return [
        np.zeros((0, 5), "f4"),
        np.zeros((3, 0), order="F"),
        np.array(5.0),
        np.zeros((1, 1), object),
        bytearray(),
    ]


def units(chance: random.Random) -> Any:
    zoo: Any = importlib.import_module("tests.inputs.state_zoo")
    owner = _numbers(chance)
    made = owner.view(zoo.UnitArray)
    made.unit = ["m"]
    return {"u": made, "owner": owner, "v": made[5:]}


def graph(chance: random.Random) -> Any:
    shared: list[Any] = [1, _numbers(chance, "f8", 5000)]
    root: Any = Open(
        name="root", shared=shared, slots=Slots(shared), table={"k": shared, 2: {"deep": Open()}}
    )
    root.itself, root.part = root, shared[1][5:]
    return root


def optimiser(chance: random.Random) -> Any:
    flat = _numbers(chance)
    half = len(flat) // 4 * 2
    return Open(
        flat=flat,
        weight=flat[:half].reshape(2, -1),
        bias=flat[half:],
        moments=[np.zeros_like(flat), np.zeros_like(flat)],
    )


def chat(chance: random.Random) -> Any:
    tool = {"rows": list(range(9))}
    return [{"role": "user", "n": n, "tool": tool, "t": ("a", [n])} for n in range(60)]


def tensors(chance: random.Random) -> Any:
    """Over memory of their own, some of it shown by arrays too, and over an array's."""
    own, alone = (torch.from_numpy(_numbers(chance)).clone() for _ in range(2))
    memory = _numbers(chance)
    return Open(
        own=own,
        part=own[7:900:3],
        shown=own[50:].numpy(),
        matrix=own[: len(own) // 8 * 8].reshape(8, -1).T,
        lent=torch.from_numpy(memory),
        memory=memory,
        weight=torch.nn.Parameter(alone),
        whole=alone.view(torch.int32),
    )


_OWN = (
    *(plain, fortran, planes, slices, parts_alone, windows, structured, times, record, masked, matrix, texts),
    *(
        things,
        raw,
        shown_raw,
        codes,
        frozen,
        mapped,
        foreign,
        strangers,
        read_only,
        nothing,
        units,
        graph,
        optimiser,
        chat,
    ),
)
CATALOGUE: dict[str, Callable[[random.Random], Any]] = {
    each.__name__: each for each in (*_OWN, *((tensors,) if torch else ()))
}
