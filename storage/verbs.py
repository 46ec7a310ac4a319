"""What a catalog in tables needs of its database, and how its verbs are run in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from .rows import Connection

__all__ = ("TableDatabase", "verb")

Asked = ParamSpec("Asked")
Told = TypeVar("Told")
Catalogs = TypeVar("Catalogs", bound="Kept")


class TableDatabase(Protocol):
    """Where the tables lie. Any thread and any process may use it."""

    # What a statement that reads a row ends with, so that others who would write it wait.
    lock: str
    # What finds out whether there is a table of that name: a row whose first column is not null.
    table_named: str

    def reading(self) -> contextlib.AbstractContextManager[Connection]:
        """A transaction with one consistent view."""
        ...

    def writing(self) -> contextlib.AbstractContextManager[Connection]:
        """A transaction: durable when left without an error, undone when left with one.

        Those of one system come one after the other, from the moment they look at its lease.
        """
        ...

    def persist(self, work: Callable[[], Told]) -> Told:
        """Runs a verb; once more where the database went away and surely nothing was changed."""
        ...

    def time(self, connection: Connection, now: float) -> float:
        """What leases are measured by; ``now`` is the caller's clock."""
        ...

    def tidy(self) -> None:
        """What can wait until nobody waits for it."""
        ...

    def close(self) -> None: ...


class Kept(Protocol):
    """What is kept in a database."""

    @property
    def database(self) -> TableDatabase: ...


def verb(
    method: Callable[Concatenate[Catalogs, Asked], Told],
) -> Callable[Concatenate[Catalogs, Asked], Told]:
    """A method that is one transaction, and may be run again if that did not happen."""

    @wraps(method)
    def run(catalog: Catalogs, /, *args: Asked.args, **kwargs: Asked.kwargs) -> Told:
        return catalog.database.persist(lambda: method(catalog, *args, **kwargs))

    return run
