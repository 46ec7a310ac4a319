"""Rows of a real PostgreSQL: each once, whoever writes; what the table refuses; a server that goes away."""

from __future__ import annotations

import datetime
import decimal
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from cutline.errors import OutputRefused, StoreUnreachable
from cutline.storage.location import database_of
from cutline.storage.row_table import RowTable
from cutline.storage.sinks import Origin, Record, encoded
from tests.storage.proxy import proxy
from tests.system.living import comes_to, until

from .servers import Postgres

ANN, BOB = Origin("l1", "ann", 1), Origin("l1", "bob", 1)


def record(origin: Origin, number: int, **row: Any) -> Record:
    return Record(origin, number, 7, encoded("postgres", row))


@pytest.fixture
def admin(postgres_server: Postgres) -> Iterator[psycopg.Connection[Any]]:
    options: dict[str, Any] = dict(database_of(postgres_server.url("x")).options)
    with psycopg.connect(**options, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS sinks CASCADE")
        connection.execute("CREATE SCHEMA sinks")
        connection.execute(
            "CREATE TABLE sinks.invoices (who text NOT NULL, cents int CHECK (cents > 0), at timestamptz,"
            " day date, share numeric, raw bytea, more jsonb, ref uuid, cutline_id text PRIMARY KEY,"
            " cutline_cut bigint)"
        )
        yield connection


def table(server: Postgres, name: str = "out", into: str = "sinks.invoices") -> RowTable:
    return RowTable(name, server.url("x"), into)


def rows(admin: psycopg.Connection[Any], columns: str = "who, cents") -> list[Any]:
    return admin.execute(f"SELECT {columns} FROM sinks.invoices ORDER BY cutline_id").fetchall()


def test_rows_and_numbers(admin: psycopg.Connection[Any], postgres_server: Postgres) -> None:
    sink = table(postgres_server)
    assert sink.open() == {}
    at = datetime.datetime(2026, 11, 30, 12, 0, tzinfo=datetime.timezone.utc)
    number = uuid.UUID(int=5)
    sink.publish(
        [
            record(ANN, 1, who="ann", cents=1, at=at, day=at.date(), share=decimal.Decimal("0.10")),
            record(ANN, 2, who="ann", cents=2, raw=b"\0\1", more={"a": [1, None]}, ref=number),
            record(BOB, 1, who="bob", cents=3),
        ]
    )
    found = rows(admin, "at, day, share, raw, more, ref, cutline_id, cutline_cut")
    assert found[0][:3] == (at, at.date(), decimal.Decimal("0.10"))
    assert found[1][3:6] == (b"\0\1", {"a": [1, None]}, number)
    assert [(row[6], row[7]) for row in found] == [
        ("l1/ann/1/out/1", 7), ("l1/ann/1/out/2", 7), ("l1/bob/1/out/1", 7)
    ]  # fmt: skip
    # A second writer, who does not know of it, and one of another name.
    other = table(postgres_server)
    assert other.open() == {ANN: 2, BOB: 1}
    sink.publish([record(ANN, 3, who="ann", cents=4)])
    other.publish([record(ANN, 3, who="ann", cents=4), record(ANN, 4, who="ann", cents=5)])
    assert len(rows(admin)) == 5
    named = table(postgres_server, "more")
    assert named.open() == {}
    named.publish([record(ANN, 1, who="ann", cents=6)])
    assert len(rows(admin)) == 6
    for each in (sink, other, named):
        each.close()
        each.close()


def test_what_the_table_refuses(admin: psycopg.Connection[Any], postgres_server: Postgres) -> None:
    sink = table(postgres_server)
    sink.open()
    batch = [record(ANN, number, who="ann", cents=number - 3 or None) for number in range(4, 7)]
    wrong = [record(ANN, 7, who="ann", cents=-1), record(ANN, 8, who="ann", cents=8)]
    with pytest.raises(OutputRefused, match=r"does not take row 7 of 'ann' .*invoices_cents_check"):
        sink.publish(batch + wrong)
    # What came before it is there, once.
    assert [cents for _, cents in rows(admin)] == [1, 2, 3]
    admin.execute("ALTER TABLE sinks.invoices DROP CONSTRAINT invoices_cents_check")
    sink.publish(batch + wrong)
    assert [cents for _, cents in rows(admin)] == [1, 2, 3, -1, 8]
    for row in ({"what": 1}, {"who": None, "cents": 1}, {"who": "x", "cents": "many"}):
        with pytest.raises(OutputRefused, match="row 9"):
            sink.publish([record(ANN, 9, **row)])
    sink.close()


def test_tables_that_are_not_there(admin: psycopg.Connection[Any], postgres_server: Postgres) -> None:
    with pytest.raises(OutputRefused, match="there is no table sinks.receipts"):
        table(postgres_server, into="sinks.receipts").open()
    admin.execute('CREATE TABLE sinks."Odd Name" (n int)')
    odd = table(postgres_server, into="sinks.Odd Name")
    odd.open()
    odd.publish([record(ANN, 1, n=1)])
    assert admin.execute('SELECT n FROM sinks."Odd Name"').fetchall() == [(1,)]
    odd.close()
    admin.execute("DROP ROLE IF EXISTS sink_reader")
    admin.execute("CREATE ROLE sink_reader LOGIN PASSWORD 'reader'")
    admin.execute("GRANT USAGE ON SCHEMA sinks TO sink_reader")
    url = postgres_server.url("x", user="sink_reader", password="reader")
    with pytest.raises(OutputRefused, match="may not be written"):
        RowTable("out", url, "sinks.invoices").open()
    admin.execute("DROP OWNED BY sink_reader")
    admin.execute("DROP ROLE sink_reader")


def test_a_server_that_goes_away(admin: psycopg.Connection[Any], postgres_server: Postgres) -> None:
    nowhere = RowTable("out", postgres_server.url("x", port=1), "sinks.invoices")
    with pytest.raises(StoreUnreachable, match="cannot be reached") as caught:
        nowhere.open()
    assert postgres_server.password not in str(caught.value)
    sink = table(postgres_server)
    sink.open()
    sink.publish([record(ANN, 1, who="ann", cents=1)])
    admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND datname = 'postgres'"
    )
    with pytest.raises(StoreUnreachable):
        sink.publish([record(ANN, 2, who="ann", cents=2)])
    assert sink.open() == {ANN: 1}
    sink.publish([record(ANN, 2, who="ann", cents=2)])
    assert len(rows(admin)) == 2
    sink.close()


@pytest.mark.parametrize("how", ["request", "answer"])
def test_a_commit_that_nobody_knows_the_outcome_of(
    admin: psycopg.Connection[Any], postgres_server: Postgres, how: Any
) -> None:
    """The connection is lost at COMMIT: before it reached the server, or before its answer came back."""
    with proxy(postgres_server.port) as line:
        sink = RowTable("out", postgres_server.url("x", port=line.port), "sinks.invoices")
        sink.open()
        sink.publish([record(ANN, 1, who="ann", cents=1)])
        line.cut(b"COMMIT", how)
        with pytest.raises(StoreUnreachable):
            sink.publish([record(ANN, 2, who="ann", cents=2), record(BOB, 1, who="bob", cents=1)])
        before = {ANN: 1} if how == "request" else {ANN: 2, BOB: 1}
        comes_to(sink.open, before, "the server's word")
        # Whatever it was, and whoever asks for it again: it is there once.
        sink.publish([record(ANN, 2, who="ann", cents=2), record(BOB, 1, who="bob", cents=1)])
        assert sorted(rows(admin)) == [("ann", 1), ("ann", 2), ("bob", 1)]
        sink.close()


def test_a_commit_that_is_still_under_way_is_waited_for(
    admin: psycopg.Connection[Any], postgres_server: Postgres
) -> None:
    """Who opens the table anew sees the numbers of before, and must not write the rows a second time."""
    old, new = table(postgres_server), table(postgres_server)
    assert old.open() == {} and new.open() == {}
    slow = old._open_one()
    done = threading.Event()

    def publish() -> None:
        new.publish([record(ANN, 1, who="ann", cents=1)])
        done.set()

    again = threading.Thread(target=publish)
    with slow.transaction(), slow.cursor() as cursor:
        fresh = old._claim(cursor, [record(ANN, 1, who="ann", cents=1)])
        assert len(fresh) == 1
        cursor.execute("INSERT INTO sinks.invoices (who, cents, cutline_id) VALUES ('ann', 1, 'old')")
        assert new.open() == {}
        again.start()
        until(lambda: _waits(admin), "the second one to wait")
        assert not done.is_set()
    again.join()
    assert rows(admin) == [("ann", 1)] and done.is_set()
    old.close()
    new.close()


def _waits(admin: psycopg.Connection[Any]) -> bool:
    found = admin.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()
    return found is not None and found[0] > 0


def test_sinks_and_tables_are_told_apart_whatever_their_names_are(
    admin: psycopg.Connection[Any], postgres_server: Postgres
) -> None:
    """Else what one of them has would count as there in the other."""
    admin.execute('CREATE TABLE sinks."b:c" (who text, cents int)')
    admin.execute("CREATE TABLE sinks.c (who text, cents int)")
    one, other = table(postgres_server, "a", "sinks.b:c"), table(postgres_server, "a:sinks.b", "sinks.c")
    assert one._sink != other._sink
    one.open()
    one.publish([record(ANN, 1, who="ann", cents=1)])
    one.close()
    assert other.open() == {}
    other.close()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (7, "a row is a dict"),
        ({}, "a row is a dict"),
        ({1: 2}, "a row is a dict"),
        ({"a": object()}, "no column can be a object"),
        ({"a": "x\0"}, "zero byte"),
        ({"a": {"b": object()}}, "not JSON serializable"),
        ({"a": "\ud800"}, "surrogates"),
        ({"a": "x" * 9_000_000}, "more than 8,388,608"),
    ],
)
def test_values_that_are_no_rows(value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        encoded("postgres", value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("a\nb", "line break"),
        ("a\r", "line break"),
        ({1, 2}, "as JSON"),
        (float("nan"), "as JSON"),
        ("\ud800", "UTF-8 cannot hold"),
        ({"a": "\ud800"}, "UTF-8 cannot hold"),
        ("x" * 9_000_000, "more than 8,388,608"),
    ],
)
def test_values_that_are_no_lines(value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        encoded("file", value)


def test_values_as_lines() -> None:
    for value, line in (
        ("\u00e4 b", "\u00e4 b"),
        ("", ""),
        ({"\u00e4": [1, None]}, '{"\u00e4": [1, null]}'),
        (7, "7"),
        (None, "null"),
        ("a\u2028b", "a\u2028b"),
    ):
        assert encoded("file", value).decode() == f"{line}\n"
