"""The PostgreSQL catalog keeps the contract, over connections that break too, and says what it cannot use."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from cutline.errors import (
    Corrupt,
    Fenced,
    NewerFormat,
    NotAStore,
    RefusedOption,
    StorageError,
    StoreForbidden,
    StoreInUse,
    StoreNotWritable,
    StoreUnreachable,
)
from cutline.storage import Catalog, Lease, postgres_database
from cutline.storage.location import locate
from cutline.storage.postgresql import PostgresCatalog
from tests.storage.cast import KEY, owner
from tests.storage.conformance import CatalogTests
from tests.storage.proxy import Proxy, proxy
from tests.storage.servers import Postgres


def opened(url: str, *, server_clock: bool = True) -> PostgresCatalog:
    """The catalog at a catalog's URL."""
    where = locate(f"/nowhere?catalog={url}").catalog
    assert where is not None
    catalog = PostgresCatalog(where, server_clock=server_clock)
    with contextlib.suppress(StorageError, RefusedOption):
        catalog.use_key(KEY)
    return catalog


@contextlib.contextmanager
def made(url: str, *, server_clock: bool = True) -> Iterator[PostgresCatalog]:
    """A new one."""
    with contextlib.closing(opened(url, server_clock=server_clock)) as catalog:
        catalog.create("id", "a place", KEY)
        yield catalog


@pytest.fixture
def schema() -> str:
    return f"test_{secrets.token_hex(6)}"


class TestPostgresCatalog(CatalogTests):
    @pytest.fixture
    def catalog(self, postgres_server: Postgres, schema: str) -> Iterator[Catalog]:
        # The contract's times are made up: they are the callers', not the server's.
        with made(postgres_server.url(schema), server_clock=False) as catalog:
            yield catalog


@pytest.fixture
def catalog(postgres_server: Postgres, schema: str) -> Iterator[PostgresCatalog]:
    with made(postgres_server.url(schema)) as catalog:
        yield catalog


def admin(server: Postgres, *statements: str) -> None:
    """Changes the database behind the catalog's back."""
    with psycopg.connect(
        host="127.0.0.1",
        port=server.port,
        user=server.user,
        password=server.password,
        dbname="postgres",
        autocommit=True,
    ) as connection:
        for statement in statements:
            connection.execute(statement.encode())


# Leases


def test_leases_are_measured_by_the_servers_clock(catalog: PostgresCatalog) -> None:
    first = catalog.acquire_lease("s", owner(1), 1000.0, 0.0)
    with pytest.raises(StoreInUse):
        catalog.acquire_lease("s", owner(2), 1000.0, 1e12)
    catalog.renew_lease(first, -1.0, 1e12)
    assert catalog.acquire_lease("s", owner(2), 1000.0, 0.0).token > first.token
    with pytest.raises(Fenced):
        catalog.bump_epoch(first, "any")


def test_one_of_many_that_come_first_gets_the_lease(postgres_server: Postgres, schema: str) -> None:
    with made(postgres_server.url(schema)):
        pass
    gate = threading.Barrier(6)
    won: list[Lease] = []
    refused: list[StoreInUse] = []

    def acquire(number: int) -> None:
        with contextlib.closing(opened(postgres_server.url(schema))) as mine:
            mine.store_id()
            gate.wait()
            try:
                won.append(mine.acquire_lease("s", owner(number), 100.0, 0.0))
            except StoreInUse as error:
                refused.append(error)

    threads = [threading.Thread(target=acquire, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and len(refused) == 5
    assert {error.facts["owner"]["pid"] for error in refused} == {won[0].owner.pid}


def test_systems_do_not_wait_for_each_other(postgres_server: Postgres, schema: str) -> None:
    with made(postgres_server.url(schema)) as one, contextlib.closing(opened(one_url(one))) as two:
        mine = one.acquire_lease("one", owner(1), 100.0, 0.0)
        with one.database.writing() as connection:
            one._leases.fence(connection, mine)
            # In the middle of a transaction of the first: the second is through with one of its own.
            other = two.acquire_lease("two", owner(2), 100.0, 0.0)
            line = two.create_lineage(other, None)
            assert two.head_lineage("two") == line


def one_url(catalog: PostgresCatalog) -> str:
    """The URL of an open catalog, with its password."""
    options = catalog.database._options
    return Postgres(int(options["port"])).url(catalog.database.schema)


# Connections that break


@pytest.fixture
def line(postgres_server: Postgres) -> Iterator[Proxy]:
    with proxy(postgres_server.port) as made:
        yield made


@pytest.fixture
def far(postgres_server: Postgres, line: Proxy, schema: str) -> Iterator[PostgresCatalog]:
    """A catalog through the line."""
    with made(postgres_server.url(schema, port=line.port)) as catalog:
        yield catalog


COMMIT = b"COMMIT\0"
MARK = b"INSERT INTO writes"


@pytest.mark.parametrize("sign", [MARK, b"FOR UPDATE", COMMIT])
@pytest.mark.parametrize("how", ["request", "answer"])
def test_a_change_over_a_line_that_breaks(far: PostgresCatalog, line: Proxy, sign: bytes, how: str) -> None:
    """It happens once, whatever was lost."""
    lease = far.acquire_lease("s", owner(), 1000.0, 0.0)
    lineage = far.create_lineage(lease, None)
    births = [far.next_birth(lease, lineage)]
    line.cut(sign, "request" if how == "request" else "answer")
    births.append(far.next_birth(lease, lineage))
    assert line.cut_count == 1
    births.append(far.next_birth(lease, lineage))
    assert births == [1, 2, 3]


def test_a_commit_whose_answer_is_lost_is_a_commit(far: PostgresCatalog, line: Proxy) -> None:
    lease = far.acquire_lease("s", owner(), 1000.0, 0.0)
    lineage = far.create_lineage(lease, None)
    number = far.begin(lease, lineage, kind="full", label=None, roster=[], now=1.0)
    line.cut(COMMIT, "answer")
    row = far.commit(
        lease, lineage, number, manifest_key="m", manifest_digest=b"d", blobs=(), summary={}, now=2.0
    )
    assert line.cut_count == 1
    assert far.find("s", "newest") == row and row.fate == "committed"


@pytest.mark.parametrize("how", ["request", "answer"])
def test_a_first_change_of_all(far: PostgresCatalog, line: Proxy, how: str) -> None:
    """There is no older mark of this process to be told from."""
    line.cut(COMMIT, "request" if how == "request" else "answer")
    assert far.acquire_lease("s", owner(), 1000.0, 0.0).token == 1
    assert line.cut_count == 1


def test_readers_come_back(far: PostgresCatalog, line: Proxy) -> None:
    line.cut(b"SELECT system", "answer")
    assert far.systems() == [] and line.cut_count == 1


@pytest.mark.parametrize(("sign", "unchanged"), [(MARK, True), (COMMIT, False)])
def test_a_server_that_stays_away(
    far: PostgresCatalog, line: Proxy, monkeypatch: pytest.MonkeyPatch, sign: bytes, unchanged: bool
) -> None:
    lease = far.acquire_lease("s", owner(), 1000.0, 0.0)
    monkeypatch.setattr(postgres_database, "PATIENCE", 0.2)
    line.cut(sign, "answer")
    line.away = True
    with pytest.raises(StoreUnreachable) as caught:
        far.renew_lease(lease, 1000.0, 0.0)
    assert caught.value.facts["unchanged"] is unchanged
    assert line.cut_count == 1
    line.heal()
    far.renew_lease(lease, 1000.0, 0.0)


def test_a_server_that_ends_our_session(catalog: PostgresCatalog, postgres_server: Postgres) -> None:
    lease = catalog.acquire_lease("s", owner(), 1000.0, 0.0)
    admin(
        postgres_server,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cutline'",
    )
    catalog.renew_lease(lease, 1000.0, 0.0)


def test_a_forked_child_opens_its_own_connection(catalog: PostgresCatalog) -> None:
    lease = catalog.acquire_lease("s", owner(), 1000.0, 0.0)
    lineage = catalog.create_lineage(lease, None)
    child = os.fork()
    if not child:
        os._exit(0 if catalog.next_birth(lease, lineage) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert catalog.next_birth(lease, lineage) == 2


# What cannot be used


def test_newer_format(catalog: PostgresCatalog, postgres_server: Postgres, schema: str) -> None:
    admin(postgres_server, f"UPDATE {schema}.meta SET value = '99' WHERE key = 'format'")
    with pytest.raises(NewerFormat, match="upgrade cutline"):
        catalog.store_id()


@pytest.mark.parametrize("table", ["meta", "leases", "checkpoints"])
def test_a_table_that_is_gone(
    catalog: PostgresCatalog, postgres_server: Postgres, schema: str, table: str
) -> None:
    lease = catalog.acquire_lease("s", owner(), 1000.0, 0.0)
    lineage = catalog.create_lineage(lease, None)
    admin(postgres_server, f"DROP TABLE {schema}.{table} CASCADE")
    verbs: dict[str, Callable[[], object]] = {
        "meta": catalog.store_id,
        "leases": lambda: catalog.renew_lease(lease, 1.0, 0.0),
        "checkpoints": lambda: catalog.fate(lineage, 1),
    }
    with pytest.raises(Corrupt, match=f"{table}.*bring the schema back from a dump"):
        verbs[table]()


def test_a_flipped_value(catalog: PostgresCatalog, postgres_server: Postgres, schema: str) -> None:
    catalog.acquire_lease("s", owner(), 1000.0, 0.0)
    admin(postgres_server, f"UPDATE {schema}.leases SET token = 7")
    with pytest.raises(Corrupt, match="lease of system 's'"):
        catalog.lease_holder("s")


def test_a_role_that_may_only_read(catalog: PostgresCatalog, postgres_server: Postgres, schema: str) -> None:
    reader = f"reader_{secrets.token_hex(4)}"
    catalog.acquire_lease("s", owner(), 1000.0, 0.0)
    admin(
        postgres_server,
        f"CREATE ROLE {reader} LOGIN PASSWORD 'readers'",
        f"GRANT USAGE ON SCHEMA {schema} TO {reader}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {reader}",
    )
    url = postgres_server.url(schema, user=reader, password="readers")
    with contextlib.closing(opened(url)) as reading:
        assert reading.lease_holder("s") == owner()
        with pytest.raises(StoreNotWritable, match=f"grant this role all on the schema {schema}"):
            reading.acquire_lease("t", owner(), 1000.0, 0.0)
        assert reading.lease_holder("s") == owner()
    with contextlib.closing(
        opened(postgres_server.url(f"{schema}_b", user=reader, password="readers"))
    ) as new:
        with pytest.raises(StoreNotWritable):
            new.create("id", "a place", KEY)


@pytest.mark.parametrize(
    ("url", "kind", "text"),
    [
        ("postgresql://cutline:wrong-word@127.0.0.1:{port}/postgres", StoreForbidden, "PGPASSWORD"),
        ("postgresql://cutline:wrong-word@127.0.0.1:1/postgres", StoreUnreachable, "cannot be reached"),
        ("postgresql://cutline:{word}@127.0.0.1:{port}/nobody", NotAStore, "make the database first"),
        ("postgresql://cutline:wrong-word@127.0.0.1:{port}/postgres?colour=red", RefusedOption, "colour"),
    ],
)
def test_where_nobody_answers(
    postgres_server: Postgres,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    kind: type[StorageError],
    text: str,
) -> None:
    monkeypatch.setattr(postgres_database, "PATIENCE", 0.2)
    quoted = postgres_server.password.replace("/", "%2F").replace("@", "%40").replace(":", "%3A")
    with contextlib.closing(opened(url.format(port=postgres_server.port, word=quoted))) as catalog:
        with pytest.raises(kind, match=text) as caught:
            catalog.systems()
    told = f"{caught.value} {caught.value.__cause__} {caught.value.facts}"
    assert "wrong-word" not in told and postgres_server.password not in told


def test_names_that_a_database_cannot_hold(catalog: PostgresCatalog) -> None:
    with pytest.raises(RefusedOption):
        catalog.acquire_lease("a\0b", owner(), 10.0, 0.0)
    assert catalog.acquire_lease("a b", owner(), 10.0, 0.0).token == 1


def test_marks_of_processes_that_are_gone(
    catalog: PostgresCatalog, postgres_server: Postgres, schema: str
) -> None:
    catalog.acquire_lease("s", owner(), 1000.0, 0.0)
    admin(
        postgres_server,
        f"INSERT INTO {schema}.writes VALUES ('old', 1, now() - interval '8 days'), ('new', 1, now())",
    )
    catalog.tidy()
    with catalog.database.reading() as connection:
        writers = {writer for (writer,) in connection.execute("SELECT writer FROM writes")}
    assert "new" in writers and "old" not in writers
