"""Two people answer one question at the same moment: one answer is recorded, and both hear which.

People need no lease, so nothing else keeps them apart, whatever the catalog knows of the system's leases.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from cutline.errors import Fenced
from cutline.storage import SqliteCatalog
from cutline.storage.tables import TableCatalog
from tests.storage.cast import KEY, owner
from tests.storage.conformance_filling import outcome

Opened: TypeAlias = Callable[[], AbstractContextManager[TableCatalog]]

# Seconds that one who is about to write waits for another one who is, too.
TOGETHER = 0.5


@pytest.fixture(params=["sqlite", "postgresql"])
def again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens one and the same catalog, each time anew."""
    if request.param == "sqlite":
        SqliteCatalog.create(tmp_path / "c.sqlite", "id", KEY).close()

        def opened() -> TableCatalog:
            catalog = SqliteCatalog(tmp_path / "c.sqlite")
            catalog.use_key(KEY)
            return catalog

        yield lambda: contextlib.closing(opened())
        return
    from tests.storage import test_postgresql

    url = request.getfixturevalue("postgres_server").url(f"test_{secrets.token_hex(6)}")
    with test_postgresql.made(url):
        yield lambda: contextlib.closing(test_postgresql.opened(url))


def forget_leases(catalog: TableCatalog) -> None:
    with catalog.database.writing() as connection:
        connection.execute("DELETE FROM leases")


@pytest.mark.parametrize("leases", ["none", "given up", "held"])
def test_of_two_answers_at_one_moment_one_counts(
    again: Opened, monkeypatch: pytest.MonkeyPatch, leases: str
) -> None:
    with again() as catalog:
        lease = catalog.acquire_lease("s", owner(), 1000.0, 0.0)
        line = catalog.create_lineage(lease, None)
        if leases != "held":
            catalog.release_lease(lease)
        if leases == "none":
            forget_leases(catalog)
    both = threading.Barrier(2)
    looked = TableCatalog._effects_of

    def looking(self: TableCatalog, *given: Any) -> Any:
        found = looked(self, *given)
        # Whoever gets here beside the other has seen that there is no answer.
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(TOGETHER)
        return found

    monkeypatch.setattr(TableCatalog, "_effects_of", looking)
    recorded: dict[str, str] = {}

    def settle(who: str) -> None:
        with again() as mine:
            recorded[who] = mine.settle("s", outcome(line, "r:q", 0, who)).by

    threads = [threading.Thread(target=settle, args=(who,)) for who in ("ann", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.setattr(TableCatalog, "_effects_of", looked)
    with again() as catalog:
        (row,) = catalog.effects(line)
        assert set(recorded) == {"ann", "bob"} and set(recorded.values()) == {row.by}


def test_a_place_to_wait_at_is_no_lease(again: Opened) -> None:
    with again() as catalog:
        first = catalog.acquire_lease("s", owner(), 1000.0, 0.0)
        line = catalog.create_lineage(first, None)
        forget_leases(catalog)
        catalog.settle("s", outcome(line, "r:q", 0, "ann"))
        assert catalog.lease_holder("s") is None and catalog.held_lease("s") is None
        with pytest.raises(Fenced, match="held by nobody"):
            catalog.create_lineage(first, None)
        assert catalog.acquire_lease("s", owner(2), 1000.0, 0.0).token == 1
