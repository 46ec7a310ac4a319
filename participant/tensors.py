"""Torch tensors on the CPU as places in memory, so that they stay shared with each other and with arrays.

Theory of operation. Torch pickles a storage by copying it, apart from every array that shows the same
memory, and drops gradients. Here a tensor is (owner, element type, shape, strides, offset) like an array:
its storage is the owner, by address. Torch is never imported by Cutline; a program that holds tensors has
imported it, and an image that holds tensors imports it when loaded. Tensors elsewhere (CUDA, sparse,
quantized) pickle themselves. A tensor that is the result of a recorded computation is refused: the graph
behind it cannot be saved.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from .arrays import Arrays, Unsharable
from .memory import window
from .rebuild import mark

__all__ = ("is_tensor_kind", "load_tensor", "reduce_tensor")


def is_tensor_kind(kind: type) -> bool:
    """Whether `kind` is one of torch's tensor classes, without importing torch."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return isinstance(tensor, type) and issubclass(kind, tensor)


def reduce_tensor(arrays: Arrays, shown: Any) -> Any:
    """How a tensor is written."""
    torch = sys.modules["torch"]
    if shown.grad_fn is not None:
        raise Unsharable("a tensor with the graph of a computation behind it: store tensor.detach()")
    plain = shown.layout is torch.strided and shown.device.type == "cpu" and not shown.is_quantized
    plain = plain and not shown.is_conj() and not shown.is_neg()
    if not plain or type(shown) not in (torch.Tensor, torch.nn.Parameter) or vars(shown):
        return shown.__reduce_ex__(5)
    storage = shown.untyped_storage()
    start = storage.data_ptr()
    place = (str(shown.dtype), tuple(shown.shape), tuple(shown.stride()), shown.storage_offset())
    about = (type(shown) is torch.nn.Parameter, shown.requires_grad, shown.grad)
    if not storage.nbytes():
        return mark("_tensor"), (None, *place, *about)
    stop = start + storage.nbytes()
    low, high = arrays.merged_at(start, stop) or (start, stop)
    return mark("_tensor"), (arrays.stand_in(low, high, window(low, high)), *place, *about, start - low)


def load_tensor(
    memory: Any,
    dtype: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    is_parameter: bool,
    requires_grad: bool,
    grad: Any,
    start: int = 0,
) -> Any:
    """The tensor over `memory`, an array of bytes; its storage begins at byte `start` of it."""
    torch = importlib.import_module("torch")
    kind = getattr(torch, dtype.removeprefix("torch."))
    if memory is None:
        made = torch.empty(shape, dtype=kind)
    else:
        size = kind.itemsize
        rest = memory[start : start + (len(memory) - start) // size * size]
        made = torch.as_strided(torch.from_numpy(rest).view(kind), shape, strides, offset)
    if is_parameter:
        made = torch.nn.Parameter(made, requires_grad=requires_grad)
    else:
        made.requires_grad_(requires_grad)
    made.grad = grad
    return made
