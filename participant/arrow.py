"""Buffers of pyarrow as places in memory: a large one is a region, and stays shared with arrays over it.

Theory of operation. Arrays, record batches and tables of Arrow pickle as their types and their buffers, and
a buffer pickles as its bytes. Here it is an owner by address, like a tensor's storage: large ones are
compared and written where they changed, not at all as a rule, and one that a numpy array made without a copy
stays over that array. Pyarrow is never imported by Cutline; an image that holds buffers imports it when
loaded. What is shown of a larger buffer counts, not all of that one, which may be a whole file.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from .arrays import Arrays
from .memory import Bytes
from .rebuild import mark

__all__ = ("is_buffer_kind", "load_buffer", "reduce_buffer")


def is_buffer_kind(kind: type) -> bool:
    """Whether `kind` is one of pyarrow's buffer classes, without importing pyarrow."""
    buffer = getattr(sys.modules.get("pyarrow"), "Buffer", None)
    return isinstance(buffer, type) and issubclass(kind, buffer)


def reduce_buffer(arrays: Arrays, shown: Any) -> Any:
    """How a buffer is written."""
    if not shown.size or not shown.is_cpu:
        return shown.__reduce_ex__(5)
    memory, start = arrays.placed(shown.address, shown.size, shown)
    return mark("_arrow_buffer"), (memory, start, shown.size, shown.is_mutable)


def load_buffer(memory: Bytes, start: int, size: int, mutable: bool) -> Any:
    """The buffer over that part of `memory`, an array of bytes."""
    pyarrow = importlib.import_module("pyarrow")
    part = memory[start : start + size]
    if not mutable:
        part.flags.writeable = False
    return pyarrow.py_buffer(part)
