"""Damage by somebody who knows the format: documents are changed, and every digest above them is made anew.

Where stores have a key, what is changed so does not verify: it must be refused like any other damage.
Without one, whoever can write the files can write what he likes: then only records, markers and exports are
changed, and all that is asked is that no error is without a name.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cutline.storage.codec import canonical, decode, digest_of, expand, squeeze
from tests.fuzz.base import FILE, FOLDER
from tests.fuzz.bomb import bombs

__all__ = ("AUTHENTIC", "forge")

# Whether rows, records and exports carry a MAC.
AUTHENTIC = importlib.util.find_spec("cutline.storage.authentic") is not None

_DIGEST = 32
_HEAD = struct.Struct("<8sIIQ")
_FOOTER = struct.Struct("<QQQB7s32s8s")
_DEPTH = 200


def _hostile(lot: random.Random) -> Any:
    """A value that no writer wrote."""
    deep: Any = []
    for _ in range(_DEPTH):
        deep = [deep]
    return lot.choice(
        (None, True, -1, 0, 1, 2**31, 2**63, 2**64 - 1, -(2**63), 0.5, float("inf"), float("nan"), "", "x")
        + ("x" * 70_000, "../../x", "/etc/passwd", "\0", "newest", "é", b"", b"x" * 32, bombs()[1], [], {})
        + ([None], [["a", 1]], {"a": {}}, {"size": -1}, deep, ["a"] * 5000)
    )


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a document something could be changed."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key in value:
            found += _places(value[key], (*path, key))
    elif isinstance(value, list):
        for number in range(min(len(value), 20)):
            found += _places(value[number], (*path, number))
    return found


def _changed(lot: random.Random, document: Any) -> Any:
    """The document with a value of it changed, dropped, or moved; it is changed in place."""
    places = _places(document)
    if not places:
        return _hostile(lot)
    *way, last = lot.choice(places)
    parent = document
    for step in way:
        parent = parent[step]
    how = lot.randrange(5)
    if how == 0:
        del parent[last]
    elif how == 1 and isinstance(parent[last], (int, float)):
        parent[last] += lot.choice((1, -1, 0.5))
    elif how == 1:
        *other_way, other_last = lot.choice(places)
        other = document
        for step in other_way:
            other = other[step]
        parent[last] = canonical_copy(other[other_last])
    else:
        parent[last] = _hostile(lot)
    return document


def canonical_copy(value: Any) -> Any:
    return decode(canonical(value))


def _sealed(body: bytes, old: bytes) -> bytes:
    """A document with its digest anew, and the MAC it had before."""
    return body + digest_of(body) + old[len(_body(old)) + _DIGEST :]


def _body(content: bytes) -> bytes:
    """What is under the digest that a document ends with, whether a MAC follows or not."""
    for size in (_DIGEST, 2 * _DIGEST):
        if digest_of(content[:-size]) == content[-size:][:_DIGEST]:
            return content[:-size]
    raise AssertionError("no document with a digest")


def _records(lot: random.Random, top: Path) -> str:
    path = lot.choice(sorted(top.rglob("*.commit")))
    content = path.read_bytes()
    path.write_bytes(_sealed(canonical(_changed(lot, decode(_body(content)))), content))
    return path.name


def _marker(lot: random.Random, top: Path) -> str:
    path = top / "cutline.json"
    marker = json.loads(path.read_bytes())
    marker.pop("digest")
    marker = _changed(lot, marker)
    text = json.dumps(marker, default=repr)
    if isinstance(marker, dict):
        marker["digest"] = digest_of(canonical(json.loads(text))).hex()
        text = json.dumps(marker, default=repr)
    path.write_text(text)
    return path.name


@contextlib.contextmanager
def _tables(top: Path) -> Any:
    connection = sqlite3.connect(top / "catalog.sqlite")
    try:
        with connection:
            yield connection
    finally:
        connection.close()


def _put_row(connection: sqlite3.Connection, columns: list[Any], doc: bytes, old: bytes) -> None:
    seal = digest_of(canonical([*columns, doc])) + old[_DIGEST:]
    connection.execute(
        "UPDATE checkpoints SET label = ?, fate = ?, condemned = ?, doc = ?, seal = ?"
        " WHERE lineage = ? AND checkpoint = ?",
        (*columns[2:], doc, seal, *columns[:2]),
    )


def _rows(connection: sqlite3.Connection) -> list[Any]:
    return connection.execute(
        "SELECT lineage, checkpoint, label, fate, condemned, doc, seal FROM checkpoints ORDER BY checkpoint"
    ).fetchall()


def _packed_row(document: Any) -> bytes:
    packed = canonical(document)
    codec, stored = squeeze(packed)
    return bytes((codec,)) + len(packed).to_bytes(4, "little") + bytes(stored)


def _row_document(doc: bytes) -> Any:
    return decode(expand(doc[0], doc[5:], int.from_bytes(doc[1:5], "little")))


def _row(lot: random.Random, top: Path) -> str:
    with _tables(top) as connection:
        *columns, doc, seal = lot.choice(_rows(connection))
        if lot.randrange(3):
            doc = _packed_row(_changed(lot, _row_document(doc)))
        else:
            columns[lot.randrange(2, 5)] = lot.choice(("aborted", "begun", "committed", "odd", 1, 0))
        _put_row(connection, columns, doc, seal)
    return f"checkpoint {columns[1]}"


def _lineage(lot: random.Random, top: Path) -> str:
    names = ("epoch", "next_checkpoint", "next_birth", "origin_lineage", "origin_checkpoint")
    name = lot.choice(names)
    with _tables(top) as connection:
        value = lot.choice((0, 1, -1, 2**62, "x", b"x", 1.5))
        connection.execute(f"UPDATE lineages SET {name} = ?", (value,))
        number, lineage, *rest, seal = connection.execute("SELECT * FROM lineages").fetchone()
        new = digest_of(canonical([lineage, number, *rest])) + seal[_DIGEST:]
        connection.execute("UPDATE lineages SET seal = ?", (new,))
    return name


def _manifest_anew(top: Path, row: Any, document: Any, connection: sqlite3.Connection) -> None:
    """Writes a manifest, and its row as if it had always been so."""
    *columns, doc, seal = row
    fields = _row_document(doc)
    packed = canonical(document)
    (top / "blobs" / fields["manifest_key"]).write_bytes(packed)
    fields["manifest_digest"] = digest_of(packed)
    _put_row(connection, columns, _packed_row(fields), seal)


def _manifest(lot: random.Random, top: Path) -> str:
    with _tables(top) as connection:
        row = lot.choice(_rows(connection))
        key = _row_document(row[5])["manifest_key"]
        document = decode((top / "blobs" / key).read_bytes())
        _manifest_anew(top, row, _changed(lot, document), connection)
    return str(key)


def _pack(lot: random.Random, top: Path) -> str:
    """The document of a pack, or the bytes of what is unpickled, and everything above."""
    with _tables(top) as connection:
        row = lot.choice(_rows(connection))
        manifest = decode((top / "blobs" / _row_document(row[5])["manifest_key"]).read_bytes())
        image = lot.choice(sorted(manifest["images"].items()))[1]["image"]
        path = top / "blobs" / image["key"]
        content = _pack_anew(lot, path.read_bytes())
        path.write_bytes(content)
        image["digest"], image["size"] = content[-8 - _DIGEST : -8], len(content)
        _manifest_anew(top, row, manifest, connection)
    return str(path.name)


def _pack_anew(lot: random.Random, blob: bytes) -> bytes:
    offset, stored, raw, codec, nothing, _, end = _FOOTER.unpack(blob[-_FOOTER.size :])
    document = decode(expand(codec, blob[offset : offset + stored], raw))
    extents = blob[16:offset]
    if lot.randrange(2):
        document = _changed(lot, document)
    else:
        bomb = lot.choice(bombs())
        at = lot.randrange(max(1, len(extents) - len(bomb)))
        extents = (extents[:at] + bomb + extents[at + len(bomb) :])[: len(extents)]
        first = 0
        for row in document["stream"][2]:
            row[2] = digest_of(extents[first : first + row[0]])
            first += row[0]
    packed = canonical(document)
    footer = _FOOTER.pack(16 + len(extents), len(packed), len(packed), 0, nothing, digest_of(packed), end)
    return blob[:16] + extents + packed + footer


def _export(lot: random.Random, top: Path) -> str:
    path = top / "cutline-export" if top.is_dir() else top
    content = path.read_bytes()
    magic, version, nothing, length = _HEAD.unpack_from(content)
    head = content[_HEAD.size : _HEAD.size + length]
    anew = _sealed(canonical(_changed(lot, decode(_body(head)))), head)
    path.write_bytes(_HEAD.pack(magic, version, nothing, len(anew)) + anew + content[_HEAD.size + length :])
    return path.name


_STORE: dict[str, Callable[[random.Random, Path], str]] = {
    "record": _records,
    "marker": _marker,
    "row": _row,
    "lineage": _lineage,
    "manifest": _manifest,
    "pack": _pack,
}


# What is read before, or without, a row that vouches for it.
_READ_FIRST = ("record", "marker")


def forge(lot: random.Random, top: Path) -> str:
    """Changes one document below ``top``, which is not damaged yet, and says which."""
    if top.name in (FILE, FOLDER):
        return f"forged: {_export(lot, top)}"
    name = lot.choice(list(_STORE) if AUTHENTIC else _READ_FIRST)
    return f"forged {name}: {_STORE[name](lot, top)}"
