"""Torch tensors on the CPU as places in memory, so that they stay shared with each other and with arrays.

Theory of operation. Torch pickles a storage by copying it, apart from every array that shows the same
memory, and drops gradients. Here a tensor is (owner, element type, shape, strides, offset) like an array:
its storage is the owner, by address. Torch is never imported by Cutline; a program that holds tensors has
imported it, and an image that holds tensors imports it when loaded. Sparse and quantized tensors pickle
themselves. Refused are tensors on other devices, and what torch itself would lose or drop: the graph of a
computation behind a tensor, and hooks.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from .arrays import Arrays, Unsharable
from .rebuild import mark

__all__ = (
    "is_storage_kind",
    "is_tensor_kind",
    "load_storage",
    "load_tensor",
    "reduce_storage",
    "reduce_tensor",
)


# Devices whose tensors are saved; meta tensors hold nothing.
_HELD_HERE = ("cpu", "meta")


def is_tensor_kind(kind: type) -> bool:
    """Whether `kind` is one of torch's tensor classes, without importing torch."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return isinstance(tensor, type) and issubclass(kind, tensor)


def reduce_tensor(arrays: Arrays, shown: Any) -> Any:
    """How a tensor is written."""
    torch = sys.modules["torch"]
    if shown.device.type not in _HELD_HERE:
        raise Unsharable(
            f"a tensor on the device {shown.device}, whose memory is not captured: store tensor.cpu(), and "
            "make the one on the device from it"
        )
    if shown.grad_fn is not None:
        raise Unsharable("a tensor with the graph of a computation behind it: store tensor.detach()")
    if shown._backward_hooks or getattr(shown, "_post_accumulate_grad_hooks", None):
        raise Unsharable("a tensor with a hook, which would be lost; register it where it is used")
    if type(shown) not in (torch.Tensor, torch.nn.Parameter) or not _is_plain(torch, shown):
        return shown.__reduce_ex__(5)
    reduced = _placed(torch, arrays, shown)
    attributes = vars(shown)
    if not attributes:
        return reduced
    return *reduced, dict(attributes), None, None, mark("_set_attributes")


def _is_plain(torch: Any, shown: Any) -> bool:
    """Whether its storage, shape and strides are all there is to it."""
    if shown.is_nested or shown.layout is not torch.strided or shown.device.type != "cpu":
        return False
    # Not in every version of torch do axes have names.
    named = getattr(shown, "has_names", None)
    return not (shown.is_quantized or shown.is_conj() or shown.is_neg() or (named is not None and named()))


def _placed(torch: Any, arrays: Arrays, shown: Any) -> tuple[Any, tuple[Any, ...]]:
    storage = shown.untyped_storage()
    place = (str(shown.dtype), tuple(shown.shape), tuple(shown.stride()), shown.storage_offset())
    about = (type(shown) is torch.nn.Parameter, shown.requires_grad, shown.grad)
    if not storage.nbytes():
        return mark("_tensor"), (None, *place, *about)
    memory, start = arrays.placed(storage.data_ptr(), storage.nbytes(), storage)
    return mark("_tensor"), (memory, *place, *about, start)


def is_storage_kind(kind: type) -> bool:
    """Whether `kind` is one of torch's storage classes, without importing torch."""
    torch = sys.modules.get("torch")
    kinds = getattr(torch, "UntypedStorage", None), getattr(torch, "TypedStorage", None)
    return any(isinstance(each, type) and issubclass(kind, each) for each in kinds)


def reduce_storage(arrays: Arrays, shown: Any) -> Any:
    """How the memory of tensors is written by itself."""
    torch = sys.modules["torch"]
    typed = isinstance(shown, torch.TypedStorage)
    plain = shown._untyped_storage if typed else shown
    dtype = str(shown.dtype) if typed else ""
    if plain.device.type != "cpu":
        raise Unsharable(f"a storage on the device {plain.device}: store tensor.cpu()")
    if not plain.nbytes():
        return mark("_storage"), (None, dtype)
    memory, start = arrays.placed(plain.data_ptr(), plain.nbytes(), plain)
    return mark("_storage"), (memory, dtype, start, plain.nbytes())


def load_storage(memory: Any, dtype: str, start: int = 0, size: int = 0) -> Any:
    """The storage over that part of `memory`; typed, if it has a `dtype`."""
    torch = importlib.import_module("torch")
    if memory is None:
        made = torch.UntypedStorage(0)
    else:
        made = torch.from_numpy(memory[start : start + size]).untyped_storage()
    if not dtype:
        return made
    kind = getattr(torch, dtype.removeprefix("torch."))
    return torch.TypedStorage(wrap_storage=made, dtype=kind, _internal=True)


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
