"""Whether two messages say the same, seen from their bytes: a digest that does not see shared objects.

A re-run handler must make the same requests, so requests are compared by digest. But pickle writes an
object once and refers to it afterwards, and whether two equal strings are *one* object depends on the
history of the process: ``{"side": "buy", "mine": self.side}`` holds one "buy" as long as ``self.side`` is
the program's own constant, and two after a restore. So the digest is taken of what the pickle builds,
with every reference followed; a pickle is read for that, never executed.
"""

from __future__ import annotations

import io
import pickletools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

import msgpack
from xxhash import xxh3_64, xxh3_64_intdigest

from .renames import RENAMES

__all__ = ("Sayings", "call_digest", "earlier_digests", "likeness", "likeness_of")

_SKIPPED = frozenset(("PROTO", "FRAME"))
_GETS = frozenset(("BINGET", "LONG_BINGET"))
# What these take goes into the object below it.
_INTO = {"APPEND": 1, "SETITEM": 2, "BUILD": 1, "APPENDS": 0, "SETITEMS": 0, "ADDITEMS": 0}


class _Node:
    __slots__ = ("name", "argument", "parts", "digest")

    def __init__(self, name: str, argument: Any, parts: list[_Node]) -> None:
        self.name = name
        self.argument = argument
        self.parts = parts
        self.digest: bytes | None = None


# Makes what a first run may have said in place of some arguments.
Sayings: TypeAlias = Callable[[], Iterable[Any]]
# Names of today to names of before.
Names = Mapping[str, str]
_AS_THEY_ARE: Names = {}


def likeness(payload: bytes, names: Names = _AS_THEY_ARE) -> int:
    """A digest of a message made by `cutline.participant.pickling.dumps`, with other names in it."""
    if payload[0]:
        return likeness_of(payload, (), names)
    (count,) = struct.unpack_from("<Q", payload, 1)
    (length,) = struct.unpack_from("<Q", payload, 9)
    at = 9 + 8 * (count + 1)
    return likeness_of(payload[at : at + length], (payload[at + length :],), names)


def likeness_of(stream: bytes, beside: Sequence[bytes | memoryview], names: Names = _AS_THEY_ARE) -> int:
    """The same of a pickle and the arrays that travel beside it."""
    whole = xxh3_64()
    try:
        whole.update(_digest(_tree(stream), names))
    except RecursionError:
        # Nested deeper than we can follow: as written, then.
        whole.update(stream)
    for each in beside:
        whole.update(each)
    return whole.intdigest()


def call_digest(kind: int, detail: str | int, arguments: Any) -> int:
    """What a re-run must say again: the kind of message, the method (or question), the packed arguments."""
    return xxh3_64_intdigest(msgpack.packb((kind, detail, _said(arguments, _AS_THEY_ARE))))


def _said(arguments: Any, names: Names) -> Any:
    if isinstance(arguments, msgpack.ExtType):
        # A parcel's token ends with the likeness of what is in it.
        return int.from_bytes(arguments.data[-8:], "big")
    return likeness(arguments, names) if type(arguments) is bytes else arguments


def earlier_digests(kind: int, detail: str | int, arguments: Any, others: Sayings = tuple) -> Iterator[int]:
    """Digests of what a request would have been before things in it were renamed, if something was, and with
    other arguments that may stand for these."""
    for each in others():
        yield call_digest(kind, detail, each)
        yield from earlier_digests(kind, detail, each)
    if not RENAMES.table:
        return
    details: list[str | int] = [detail]
    if isinstance(detail, str):
        details += RENAMES.former(detail)[1:] if ":" in detail else RENAMES.former_methods(detail)
    rows: list[Names] = [_AS_THEY_ARE]
    if type(arguments) is bytes:
        today = sorted({RENAMES.resolve(old) for old in RENAMES.table})
        former = [RENAMES.former(name)[1:] for name in today]
        # Those of one time go together: the first names of all, the second ones of all, and so on.
        most = max(map(len, former))
        rows += [
            {name: old[min(at, len(old) - 1)] for name, old in zip(today, former, strict=True) if old}
            for at in range(most)
        ]
    for each, names in product(details, rows):
        yield xxh3_64_intdigest(msgpack.packb((kind, each, _said(arguments, names))))


def _tree(stream: bytes) -> _Node:
    stack: list[_Node] = []
    marks: list[int] = []
    memo: list[_Node] = []

    def taken(count: int) -> list[_Node]:
        start = len(stack) - count if count else marks.pop()
        parts = stack[start:]
        del stack[start:]
        return parts

    for opcode, argument, _ in pickletools.genops(io.BytesIO(stream)):
        name = opcode.name
        if name in _SKIPPED:
            continue
        if name == "MARK":
            marks.append(len(stack))
        elif name == "MEMOIZE":
            memo.append(stack[-1])
        elif name in _GETS:
            stack.append(memo[int(argument or 0)])
        elif name == "STOP":
            break
        elif name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            taken(0)
        elif name in _INTO:
            parts = taken(_INTO[name])
            stack[-1].parts += parts
        else:
            before = opcode.stack_before
            marked = pickletools.markobject in before
            parts = taken(0) if marked else taken(len(before)) if before else []
            stack.append(_Node(name, argument, parts))
    return stack[-1]


def _digest(node: _Node, names: Names) -> bytes:
    if node.digest is None:
        if names and node.name == "STACK_GLOBAL":
            _rename(node, names)
        # What refers back to itself is named by what it is, not by what it holds.
        node.digest = node.name.encode()
        own = xxh3_64(f"{node.name} {len(node.parts)} ".encode())
        argument = node.argument
        if isinstance(argument, (bytes, bytearray)):
            own.update(argument)
        else:
            own.update(repr(argument).encode("ascii", "backslashreplace"))
        for part in node.parts:
            own.update(_digest(part, names))
        node.digest = own.digest()
    return node.digest


def _rename(node: _Node, names: Names) -> None:
    """Gives a class or function in the tree another name."""
    module, qualname = node.parts
    other = names.get(f"{module.argument}:{qualname.argument}")
    if other is not None:
        parts = zip(node.parts, other.split(":"), strict=True)
        node.parts = [_Node(part.name, name, []) for part, name in parts]
