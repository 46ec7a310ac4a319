"""Whose memory an array shows: its owner, its place in that memory, and the memory as plain bytes.

Theory of operation. Sharing of memory is a fact about addresses, not about Python objects: two arrays
share when their address ranges do, however the objects came about (slices, `np.frombuffer`, a tensor over
an array). So the node of an image is the *owner*: the object at the bottom of the `.base` chain, whose
memory every view names by byte offset. Nothing here keeps a reference beyond the call.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = (
    "Bytes",
    "address",
    "dense",
    "extent",
    "owner_of",
    "overlapping",
    "span",
    "taken_over",
    "window",
    "whole",
)

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


_CTYPES = (ctypes.Array, ctypes.Structure, ctypes.Union)


def _lender_of(shown: Any) -> Any:
    """The buffer that a ctypes object was made over by `from_buffer`; None for any other."""
    kept = shown._objects
    lender = kept.get("ffffffff") if isinstance(kept, dict) and not shown._b_needsfree_ else None
    return lender if type(lender) is memoryview else None


def owner_of(array: Any) -> Any:
    """The object that owns what `array` shows: an array without a base, or a foreign buffer."""
    owner = array
    while True:
        if isinstance(owner, (np.ndarray, np.void)):
            below: Any = owner.base
        elif type(owner) is memoryview:
            below = owner.obj
        elif type(owner).__name__ == "DummyArray" and type(owner).__module__.startswith("numpy."):
            # What as_strided puts between a view and its owner.
            below = owner.base
        elif isinstance(owner, _CTYPES):
            below = _lender_of(owner)
        else:
            return owner
        if below is None:
            return owner
        owner = below


def address(array: np.ndarray[Any, Any]) -> int:
    """The address of the first element."""
    return int(array.__array_interface__["data"][0])


def extent(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """(low, high) in bytes, relative to the first element, that the elements of a non-empty array take."""
    low = high = 0
    for length, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high + array.dtype.itemsize


def span(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """(start, stop) addresses of a non-empty array."""
    low, high = extent(array)
    start = address(array)
    return start + low, start + high


def dense(array: np.ndarray[Any, Any]) -> Bytes | None:
    """All bytes of an array whose elements fill its memory without gaps, in memory order, as a flat view.

    None when there are gaps or overlaps. The element type must not hold objects.
    """
    plain = array if type(array) is np.ndarray else array.view(np.ndarray)
    if not plain.flags.c_contiguous:
        axes = sorted(range(plain.ndim), key=lambda axis: -abs(plain.strides[axis]))
        plain = plain.transpose(axes)
        if not plain.flags.c_contiguous:
            return None
    return plain.reshape(-1).view(np.uint8)


def taken_over(memory: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
    """An array that owns its memory, as one of another type and shape, C order: itself, nothing is copied.

    None for what is no such array, or has another size. Whoever else refers to it sees it change.
    """
    if type(memory) is not np.ndarray or not memory.flags.owndata or not memory.flags.c_contiguous:
        return None
    if memory.dtype.hasobject or dtype.hasobject or dtype.subdtype is not None or not shape:
        return None
    if not memory.nbytes or memory.nbytes != dtype.itemsize * math.prod(shape):
        return None
    memory.flags.writeable = True
    # Of the same size in bytes, so it stays where it is.
    memory.resize((memory.size,), refcheck=False)
    memory.dtype = dtype  # type: ignore[misc]
    memory.resize(shape, refcheck=False)
    return memory


def window(start: int, stop: int) -> Bytes:
    """The bytes between two addresses; the caller keeps whatever owns them alive."""
    at: Any = (ctypes.c_ubyte * (stop - start)).from_address(start)
    return np.frombuffer(at, np.uint8)


def whole(owner: Any) -> Bytes | None:
    """All memory of a foreign owner, where it says what that is."""
    if type(owner).__module__.partition(".")[0] == "torch":
        storage = owner.untyped_storage()
        return window(storage.data_ptr(), storage.data_ptr() + storage.nbytes())
    try:
        return np.frombuffer(owner, np.uint8)
    except (TypeError, ValueError, BufferError):
        return None


def overlapping(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The unions of those address ranges that overlap with another, ascending."""
    found: list[tuple[int, int]] = []
    here: tuple[int, int] | None = None
    several = False
    for start, stop in sorted(spans):
        if here is not None and start < here[1]:
            here, several = (here[0], max(here[1], stop)), True
            continue
        if here is not None and several:
            found.append(here)
        here, several = (start, stop), False
    if here is not None and several:
        found.append(here)
    return found
