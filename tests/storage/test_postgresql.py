"""The PostgreSQL catalog keeps the contract."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from cutline.storage import Catalog
from cutline.storage.location import locate
from cutline.storage.postgresql import PostgresCatalog
from tests.storage.conformance import CatalogTests
from tests.storage.servers import Postgres


def made(url: str, *, server_clock: bool = True) -> PostgresCatalog:
    """A new catalog at a catalog's URL."""
    where = locate(f"/nowhere?catalog={url}").catalog
    assert where is not None
    catalog = PostgresCatalog(where, server_clock=server_clock)
    catalog.create("id", "a place")
    return catalog


@pytest.fixture
def schema() -> str:
    return f"test_{secrets.token_hex(6)}"


class TestPostgresCatalog(CatalogTests):
    @pytest.fixture
    def catalog(self, postgres_server: Postgres, schema: str) -> Iterator[Catalog]:
        # The contract's times are made up: they are the callers', not the server's.
        catalog = made(postgres_server.url(schema), server_clock=False)
        yield catalog
        catalog.close()
