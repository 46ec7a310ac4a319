"""What a power cut leaves: a model of a disk that is told a log of operations, one after the other.

A file has bytes that were synced, and writes since. A folder has names that were synced, and changes of names
since: a new file, a link, a removal, a rename (of both its folders at once). A sync of a file makes its bytes
safe and no name; a sync of a folder makes its names safe and no byte. What was not synced may be on the disk
or not, each write and each name for itself, and a write may be there in part, or as zeros.

A sync that failed loses the writes before it for good, as Linux does: they are not tried again.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

__all__ = ("KEPT", "Choice", "Disk", "Op", "Tree", "chance", "lay_out", "read_log", "tree_of")

# Contents by path; None: a folder.
Tree: TypeAlias = dict[str, "bytes | None"]

_RECORD = struct.Struct("<B7xQQQQIIQ")
_SECTOR = 512
# SQLite's index of its log is memory that is shared; nobody reads it after a restart.
_SHARED = "-shm"


@dataclass(frozen=True, slots=True)
class Op:
    """An operation as the shim logs it, of ``kind`` C, M, W, T, F, E, L, U, R; X is a mark, in ``name``."""

    kind: str
    folder: int
    other_folder: int
    node: int
    offset: int
    name: str
    other: str
    data: bytes


def read_log(path: Path) -> Iterator[Op]:
    """All operations, in order."""
    raw = path.read_bytes()
    at = 0
    while at < len(raw):
        kind, one, two, node, offset, names, others, size = _RECORD.unpack_from(raw, at)
        at += _RECORD.size
        name, other = raw[at : at + names], raw[at + names : at + names + others]
        at += names + others
        yield Op(
            chr(kind), one, two, node, offset, os.fsdecode(name), os.fsdecode(other), raw[at : at + size]
        )
        at += size


class _Write:
    """Bytes at a place of a file; ``data`` None: the file is cut, or lengthened, to ``offset``."""

    __slots__ = ("data", "offset")

    def __init__(self, offset: int, data: bytes | None) -> None:
        self.offset, self.data = offset, data

    def apply(self, content: bytearray, data: bytes | None) -> None:
        if data is None:
            del content[self.offset :]
        content.extend(bytes(max(0, self.offset - len(content))))
        if data is not None:
            content[self.offset : self.offset + len(data)] = data


@dataclass(eq=False, slots=True)
class _File:
    safe: bytes = b""
    pending: list[_Write] = field(default_factory=list)
    cached: bytearray = field(default_factory=bytearray)

    def sync(self) -> None:
        content = bytearray(self.safe)
        for write in self.pending:
            write.apply(content, write.data)
        self.safe, self.pending = bytes(content), []


@dataclass(eq=False, slots=True)
class _Folder:
    safe: dict[str, _Node] = field(default_factory=dict)
    cached: dict[str, _Node] = field(default_factory=dict)


_Node: TypeAlias = "_File | _Folder"


@dataclass(eq=False, slots=True)
class _Change:
    """Names that were given (a node) or taken away (None), all at once."""

    names: list[tuple[_Folder, str, _Node | None]]


@dataclass(frozen=True, slots=True)
class Choice:
    """What a power cut keeps of what was not synced: which changes of names, and what of each write."""

    name: str
    keeps_name: Callable[[], bool]
    kept: Callable[[bytes], bytes | None]
    garbage: random.Random | None = None


def _all(data: bytes) -> bytes | None:
    return data


def _nothing(data: bytes) -> bytes | None:
    return None


KEPT = Choice("all kept", lambda: True, _all)
_FIXED = (
    Choice("nothing kept", lambda: False, _nothing),
    KEPT,
    Choice("names kept, bytes dropped", lambda: True, _nothing),
    Choice("bytes kept, names dropped", lambda: False, _all),
)


def chance(seed: str) -> Choice:
    """A choice by lot, the same for the same seed: each name or write kept or not, some writes torn."""
    lot = random.Random(seed)
    names, writes = lot.random(), lot.random()

    def kept(data: bytes) -> bytes | None:
        if lot.random() < writes:
            return data
        how = lot.randrange(4)
        if how == 0 or not data:
            return None
        if how == 1:
            return bytes(len(data))
        sectors = range(0, len(data), _SECTOR if how == 2 else 1 + lot.randrange(_SECTOR))
        return data[: lot.choice(sectors)]

    return Choice(f"by lot ({seed})", lambda: lot.random() < names, kept, lot)


def choices(seed: str, lots: int) -> list[Choice]:
    """The four plain ones, and ``lots`` by lot."""
    return [*_FIXED, *(chance(f"{seed}/{number}") for number in range(lots))]


class Disk:
    """The files below ``root`` as they are, taken to be safe; `apply` tells it what is done to them."""

    def __init__(self, root: Path) -> None:
        self._nodes: dict[int, _Node] = {}
        self._pending: list[_Change] = []
        self._root = self._read(root)

    def _read(self, path: Path) -> _Node:
        node: _Node
        if path.is_dir():
            found = {entry.name: self._read(entry) for entry in sorted(path.iterdir())}
            node = _Folder(dict(found), dict(found))
        else:
            content = path.read_bytes()
            node = _File(content, [], bytearray(content))
        self._nodes[path.stat().st_ino] = node
        return node

    def apply(self, op: Op) -> None:
        """Raises KeyError for what was done to a file that the disk does not know."""
        if op.kind in "WT":
            write = _Write(op.offset, op.data if op.kind == "W" else None)
            file = self._file(op.node)
            file.pending.append(write)
            write.apply(file.cached, write.data)
        elif op.kind == "F":
            node = self._nodes[op.node]
            if isinstance(node, _File):
                node.sync()
            else:
                self._sync_names(node)
        elif op.kind == "E":
            failed = self._nodes[op.node]
            if isinstance(failed, _File):
                failed.pending.clear()
        elif op.kind != "X":
            self._rename(op)

    def _rename(self, op: Op) -> None:
        folder = self._folder(op.folder)
        if op.kind in "CM":
            self._nodes[op.node] = _File() if op.kind == "C" else _Folder()
        if op.kind == "R":
            node = self._nodes[op.node]
            change = _Change([(folder, op.name, None), (self._folder(op.other_folder), op.other, node)])
        else:
            change = _Change([(folder, op.name, None if op.kind == "U" else self._nodes[op.node])])
        self._pending.append(change)
        for where, name, named in change.names:
            _give(where.cached, name, named)

    def _file(self, number: int) -> _File:
        node = self._nodes[number]
        assert isinstance(node, _File)
        return node

    def _folder(self, number: int) -> _Folder:
        node = self._nodes[number]
        assert isinstance(node, _Folder)
        return node

    def _sync_names(self, folder: _Folder) -> None:
        left = []
        for change in self._pending:
            if any(where is folder for where, _, _ in change.names):
                for where, name, node in change.names:
                    _give(where.safe, name, node)
            else:
                left.append(change)
        self._pending = left

    def now(self) -> Tree:
        """The files as a running system sees them."""
        tree: Tree = {}
        self._lay("", self._root, lambda folder: folder.cached, lambda file: bytes(file.cached), tree)
        return tree

    def after_a_power_cut(self, choice: Choice) -> Tree:
        """The files that are found when the power is back."""
        names: dict[int, dict[str, _Node]] = {}
        for change in self._pending:
            if choice.keeps_name():
                for where, name, node in change.names:
                    _give(names.setdefault(id(where), dict(where.safe)), name, node)

        def content(file: _File) -> bytes:
            found = bytearray(file.safe)
            for write in file.pending:
                kept = choice.kept(write.data or b"")
                if kept is not None:
                    write.apply(found, None if write.data is None else kept)
            return bytes(found)

        tree: Tree = {}
        self._lay("", self._root, lambda folder: names.get(id(folder), folder.safe), content, tree)
        if choice.garbage is not None:
            for path in tree:
                if path.endswith(_SHARED):
                    tree[path] = choice.garbage.randbytes(len(tree[path] or b""))
        return tree

    def _lay(
        self,
        path: str,
        node: _Node,
        names: Callable[[_Folder], dict[str, _Node]],
        content: Callable[[_File], bytes],
        tree: Tree,
    ) -> None:
        if isinstance(node, _File):
            tree[path] = content(node)
            return
        tree[path] = None
        for name, below in sorted(names(node).items()):
            self._lay(f"{path}/{name}", below, names, content, tree)


def _give(names: dict[str, _Node], name: str, node: _Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def tree_of(root: Path) -> Tree:
    """The files below a folder as they are; without what SQLite shares between processes."""
    found: Tree = {}
    for path in sorted([root, *root.rglob("*")]):
        name = str(path)[len(str(root)) :]
        if not name.endswith(_SHARED):
            found[name] = None if path.is_dir() else path.read_bytes()
    return found


def lay_out(tree: Tree, root: Path) -> None:
    """Makes those files below ``root``, which is not there yet."""
    for path, content in tree.items():
        place = Path(f"{root}{path}")
        if content is None:
            place.mkdir()
        else:
            place.write_bytes(content)
