"""Where what a system emits goes: a file of lines, or a table of a PostgreSQL database.

A *sink* is named in ``cutline.start(sinks=...)``. What is emitted is put into the sink's own form at once
(`encoded`), where a wrong value is an error of whoever emits it. It is published when a cut that holds it has
committed. Each record has a number of its own, counted per participant and sink; a sink keeps, together with
what it publishes, the highest number it has of each *origin*, so that nothing is published twice and a
record that comes again after a loss is known.
"""

from __future__ import annotations

import datetime
import decimal
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgpack

from cutline.errors import RefusedOption

from .location import database_of

__all__ = (
    "FILE",
    "RECORD_MAX",
    "TABLE",
    "FileSink",
    "Origin",
    "PostgresSink",
    "Record",
    "Sink",
    "encoded",
    "identity",
    "open_sink",
)

# Bytes of one record in the sink's form.
RECORD_MAX = 8 * 1024 * 1024
# Kinds of sinks, as `to_doc` names them.
FILE, TABLE = "file", "postgres"
_TABLE_PARTS = 2
_INT64 = 1 << 63


class Origin(NamedTuple):
    """Whose numbers they are. A record keeps the lineage that it was emitted in, in forks too."""

    lineage: str
    participant: str
    birth: int


class Record(NamedTuple):
    """An emitted value. ``checkpoint``: the first one that it was captured in."""

    origin: Origin
    number: int
    checkpoint: int
    body: bytes


def identity(sink: str, record: Record) -> str:
    """A text that names a record, the same one whenever it comes, and no other one."""
    origin = record.origin
    # Names may have slashes, and "a", 1, "2/b" is not "a/1", 2, "b".
    name, sink = (each.replace("%", "%25").replace("/", "%2F") for each in (origin.participant, sink))
    return f"{origin.lineage}/{name}/{origin.birth}/{sink}/{record.number}"


class Sink(Protocol):
    """An open sink. One thread uses it; after an error it is closed, and opened anew."""

    # What people are told of: something that is not as it was left, and how it goes on.
    news: list[str]

    def open(self) -> dict[Origin, int]:
        """Makes it ready; returns the highest number of each origin that it has.

        Raises:
            StorageError: it cannot be had now.
            OutputRefused: it is not what it must be.
        """

    def publish(self, records: Sequence[Record]) -> None:
        """All of it, in this order, together with its numbers; numbers are above those that it has.

        Raises:
            StorageError: nothing, or all, was published; `open` tells.
            OutputRefused: it does not take one of them.
        """

    def close(self) -> None:
        """Lets others have it. Idempotent."""


@dataclass(frozen=True)
class FileSink:
    """A file to which each emitted value adds one line: a text as it is, anything else as JSON.

    It is written on the machine that the coordinator runs on, by one system at a time. What was published is
    noted beside it, in ``PATH.cutline``.
    """

    path: str | os.PathLike[str]

    def to_doc(self) -> dict[str, Any]:
        """Its values, its path made absolute."""
        path = Path(os.fspath(self.path)).expanduser()
        if not path.name or "\0" in str(path):
            raise RefusedOption(f"a FileSink needs the path of a file, not {str(path)!r}")
        return {"kind": FILE, "path": str(path.absolute())}


@dataclass(frozen=True)
class PostgresSink:
    """A table to which each emitted value, a dict of columns, adds one row.

    Rows and the numbers of what was published (in a table ``cutline_output`` beside it) are written in one
    transaction. Columns ``cutline_id`` and ``cutline_cut`` are filled in where the table has them.
    """

    url: str = field(repr=False)
    table: str

    def to_doc(self) -> dict[str, Any]:
        """Its values, checked as far as that goes without the server."""
        parts = self.table.split(".")
        if not 0 < len(parts) <= _TABLE_PARTS or not all(parts):
            raise RefusedOption(f"table of a PostgresSink is TABLE or SCHEMA.TABLE, not {self.table!r}")
        database_of(self.url)
        return {"kind": TABLE, "url": self.url, "table": self.table}


def encoded(kind: str, value: Any) -> bytes:
    """A value in a sink's form. Raises ValueError, which says what is wrong with it."""
    body = _line(value) if kind == FILE else _row(value)
    if len(body) > RECORD_MAX:
        raise ValueError(f"it has {len(body):,} bytes, more than {RECORD_MAX:,}")
    return body


def _line(value: Any) -> bytes:
    if isinstance(value, str):
        text = str(value)
        if "\n" in text or "\r" in text:
            raise ValueError("a text becomes one line, and it has a line break")
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"it cannot be written as JSON: {error}") from error
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError as error:
        raise ValueError(f"it has characters that UTF-8 cannot hold: {error}") from error


def _row(value: Any) -> bytes:
    if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) for name in value):
        raise ValueError("a row is a dict of one or more columns, whose names are texts")
    try:
        packed: bytes = msgpack.packb({str(name): _cell(each) for name, each in value.items()})
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"it cannot be a row: {error}") from error
    return packed


# Texts are taken by PostgreSQL for whatever the column is.
_CELLS: tuple[tuple[tuple[type, ...], Callable[[Any], Any]], ...] = (
    ((bool,), bool),
    ((int,), lambda each: int(each) if -_INT64 <= each < _INT64 else str(int(each))),
    ((float,), float),
    ((str,), str),
    ((bytes, bytearray, memoryview), bytes),
    ((datetime.datetime, datetime.date, datetime.time), lambda each: each.isoformat()),
    ((decimal.Decimal, uuid.UUID), str),
    ((Mapping, list, tuple), lambda each: json.dumps(each, ensure_ascii=False, allow_nan=False)),
)


def _cell(value: Any) -> Any:
    if value is None:
        return None
    for kinds, form in _CELLS:
        if isinstance(value, kinds):
            cell = form(value)
            if isinstance(cell, str) and "\0" in cell:
                raise ValueError("PostgreSQL holds no text with a zero byte")
            return cell
    raise TypeError(f"no column can be a {type(value).__name__}")


def open_sink(name: str, doc: Mapping[str, Any]) -> Sink:
    """The sink that a `to_doc` describes, not opened yet.

    Raises:
        MissingPackage: psycopg is not here.
    """
    if doc["kind"] == FILE:
        from .line_file import LineFile

        return LineFile(Path(doc["path"]))
    # An extra: nothing of it is imported by who does not use it.
    from .row_table import RowTable

    return RowTable(name, doc["url"], doc["table"])
