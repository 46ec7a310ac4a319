"""What every catalog must do with what it takes in as a whole; part of the conformance suite."""

from __future__ import annotations

import random
import string
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from cutline.errors import CheckpointNotFound, Corrupt, Fenced, Misuse
from cutline.storage import Catalog, CheckpointRow, Lease, LineageRow
from cutline.storage.blobs import NAME_BYTES, pack_key
from cutline.storage.effects import NO_PROCESS, PERSON, EffectRow
from cutline.storage.tables import TableCatalog
from tests.storage.cast import owner

LETTERS = string.ascii_letters + string.digits


def adoptable(catalog: Catalog, line: str, checkpoint: int) -> tuple[LineageRow, CheckpointRow]:
    """A lineage "cc" with one cut, as if it came from elsewhere."""
    row = next(row for row in catalog.checkpoints("s") if row.place == (line, checkpoint))
    return LineageRow("cc", "s", 0, None, 3, checkpoint + 5, 8), replace(row, lineage="cc", parent=None)


def outcome(line: str, key: str, since: int, by: str) -> EffectRow:
    """What a person has said."""
    return EffectRow(
        line, key, 1, "ann", 1, 3, PERSON, b"d", False, since, since, "", NO_PROCESS, 0, 0, 5.0, None, "done",
        b"\x91\xc3", None, by, 5.0,
    )  # fmt: skip


class FillingTests(ABC):
    """``catalog``, ``lease`` (of "s") and ``line`` are fixtures of `CatalogTests`."""

    @abstractmethod
    def begin(self, catalog: Catalog, lease: Lease, line: str, label: str | None = None) -> int: ...

    @abstractmethod
    def commit(self, catalog: Catalog, lease: Lease, line: str, checkpoint: int, *blobs: str) -> None: ...

    @abstractmethod
    def cut(self, catalog: Catalog, lease: Lease, line: str, label: str | None = None) -> int: ...

    def test_the_lease_as_it_is_held(self, catalog: Catalog, lease: Lease, line: str) -> None:
        held = catalog.held_lease("s")
        assert held == lease
        # It works for whoever has it, until the next owner comes.
        catalog.condemn(held, lambda lines, rows: ())
        catalog.release_lease(lease)
        assert catalog.held_lease("s") is None and catalog.held_lease("nobody") is None
        catalog.acquire_lease("s", owner(9), 10.0, 0.0)
        with pytest.raises(Fenced):
            catalog.condemn(held, lambda lines, rows: ())

    def test_what_is_adopted_borrows_from_living_cuts_alone(
        self, catalog: Catalog, lease: Lease, line: str
    ) -> None:
        done = self.cut(catalog, lease, line)
        adopted, row = adoptable(catalog, line, done)
        lost = pack_key("s", line, 0, done, "a", 1)
        with pytest.raises(Corrupt, match="no checkpoint holds any more") as caught:
            catalog.adopt(lease, adopted, replace(row, blobs=(lost,)))
        assert caught.value.facts["key"] == lost and len(catalog.lineages("s")) == 1
        own = pack_key("s", "cc", 0, done, "a", 1)
        assert catalog.adopt(lease, adopted, replace(row, blobs=(own,))).blobs == (own,)

    def test_listings_are_rows_of_a_view(self, catalog: Catalog, lease: Lease, line: str) -> None:
        assert isinstance(catalog, TableCatalog)
        plain, listed = self.cut(catalog, lease, line), self.begin(catalog, lease, line, "kept")
        facts: dict[str, Any] = {"blobs": (), "summary": {}, "now": 6.0}
        text = '{"a \\"b\\"":[3,"delta",5000000000,2]}'
        catalog.commit(
            lease, line, listed, manifest_key="m", manifest_digest=bytes(32), listing=text, **facts
        )
        assert catalog.unlisted("s") == [(line, plain)]
        catalog.put_listing(lease, (line, plain), '{"c":[1,"full",7,1]}')
        assert catalog.unlisted("s") == []
        with catalog.database.reading() as connection:
            found = connection.execute("SELECT * FROM participants ORDER BY checkpoint").fetchall()
        assert [tuple(row) for row in found] == [
            ("s", line, plain, None, "c", 1, "full", 7, 1),
            ("s", line, listed, "kept", 'a "b"', 3, "delta", 5000000000, 2),
        ]
        catalog.condemn(lease, lambda lines, rows: [(line, plain)])
        with catalog.database.reading() as connection:
            assert len(connection.execute("SELECT 1 FROM participants").fetchall()) == 1

    def test_a_catalog_of_before_gets_listings(self, catalog: Catalog, lease: Lease, line: str) -> None:
        assert isinstance(catalog, TableCatalog)
        with catalog.database.writing() as connection:
            connection.execute("DROP VIEW participants")
            connection.execute("DROP TABLE listings")
        catalog.has_listings = False
        done = self.cut(catalog, lease, line)
        assert catalog.unlisted("s") == [(line, done)] and catalog.has_listings
        catalog.put_listing(lease, (line, done), '{"a":[1,"full",7,1]}')
        assert catalog.unlisted("s") == []

    def test_a_horizon_only_rises(self, catalog: Catalog, lease: Lease, line: str) -> None:
        first, second = self.cut(catalog, lease, line), self.cut(catalog, lease, line)
        begun = self.begin(catalog, lease, line)
        assert catalog.horizon(line) == 0
        catalog.raise_horizon(lease, line, second)
        catalog.raise_horizon(lease, line, first)
        assert catalog.horizon(line) == second
        for number in (begun, 99):
            with pytest.raises(CheckpointNotFound):
                catalog.raise_horizon(lease, line, number)

    def test_the_first_outcome_of_a_question_counts(self, catalog: Catalog, lease: Lease, line: str) -> None:
        asked = [self.cut(catalog, lease, line) for _ in range(2)][-1]
        assert catalog.outcomes(line, ["r:k"]) == {}
        first, second = (outcome(line, "r:k", asked, by) for by in ("person 1", "person 2"))
        assert catalog.settle("s", first) == first
        assert catalog.horizon(line) == asked
        assert catalog.settle("s", second) == first == catalog.settle("s", second, lease)
        # Whoever asks again, because the answer was lost, finds what was written.
        assert catalog.settle("s", first) == first
        keys = [f"r:{number}" for number in range(500)]
        assert catalog.outcomes(line, [*keys, "r:k"]) == {"r:k": first} and catalog.outcomes(line, keys) == {}
        # Whoever has answered: what the coordinator records, it records under its lease.
        catalog.acquire_lease("s", owner(2), 10.0, 1e9)
        with pytest.raises(Fenced):
            catalog.settle("s", outcome(line, "r:l", asked, "deadline"), lease)
        with pytest.raises(Fenced):
            catalog.show_questions(lease, line, asked)
        assert catalog.settle("s", outcome(line, "r:l", asked, "person 3")).by == "person 3"

    def test_two_who_answer_at_once(self, catalog: Catalog, lease: Lease, line: str) -> None:
        asked = self.cut(catalog, lease, line)
        rows = [outcome(line, "r:k", asked, f"person {number}") for number in range(8)]
        with ThreadPoolExecutor(len(rows)) as pool:
            found = list(pool.map(lambda row: catalog.settle("s", row), rows))
        assert len({row.by for row in found}) == 1 and found[0] in rows

    def test_what_people_have_seen_raises_the_horizon(
        self, catalog: Catalog, lease: Lease, line: str
    ) -> None:
        asked = self.cut(catalog, lease, line)
        catalog.show_questions(lease, line, asked)
        assert catalog.horizon(line) == asked
        # A fork has it from its origin, in each of its cuts.
        fork = catalog.create_lineage(lease, (line, asked))
        catalog.show_questions(lease, fork, asked)
        assert catalog.horizon(fork) == 0
        catalog.show_questions(lease, fork, asked + 1)
        assert catalog.horizon(fork) == asked + 1

    def test_a_system_is_put_in_as_it_stands(self, catalog: Catalog, lease: Lease, line: str) -> None:
        """What a catalog says of a system, put in under another name, is what it says of that."""
        cuts = [self.cut(catalog, lease, line, label) for label in (None, "l")]
        fork = catalog.create_lineage(lease, (line, cuts[0]))
        self.cut(catalog, lease, fork)
        names = {line: "aa", fork: "bb"}

        def renamed(place: tuple[str, int] | None) -> tuple[str, int] | None:
            return place and (names[place[0]], place[1])

        lines = [
            replace(each, system="t", lineage=names[each.lineage], order=0, origin=renamed(each.origin))
            for each in catalog.lineages("s")
        ]
        rows = [
            replace(each, system="t", lineage=names[each.lineage], parent=renamed(each.parent))
            for each in catalog.checkpoints("s")
        ]
        catalog.refill("t", lines, rows, token=500)
        found = catalog.lineages("t")
        assert [replace(each, order=0) for each in found] == lines and catalog.checkpoints("t") == rows
        assert found[0].order < found[1].order
        assert catalog.find("t", "l").place == ("aa", cuts[1])
        heir = catalog.acquire_lease("t", owner(4), 10.0, 0.0)
        assert heir.token == 501
        assert self.begin(catalog, heir, "aa") == cuts[-1] + 1
        for system in ("s", "t"):
            with pytest.raises(Misuse, match="already"):
                catalog.refill(system, lines, rows, token=1)

    def test_a_lineage_is_adopted_whole_or_not_at_all(
        self, catalog: Catalog, lease: Lease, line: str
    ) -> None:
        done = self.cut(catalog, lease, line, "l")
        adopted, row = adoptable(catalog, line, done)
        found = catalog.adopt(lease, adopted, row)
        assert catalog.head_lineage("s") == "cc" and catalog.find("s", "newest") == found
        assert found.horizon == adopted.next_checkpoint
        assert catalog.fate("cc", done) == "committed"
        assert self.begin(catalog, lease, "cc") == adopted.next_checkpoint
        before = catalog.lineages("s")
        with pytest.raises(Misuse, match="already"):
            catalog.adopt(lease, adopted, row)
        with pytest.raises(Misuse, match="not one of"):
            catalog.adopt(lease, replace(adopted, lineage="dd"), row)
        assert catalog.lineages("s") == before

    def test_what_never_came_up_is_no_head(self, catalog: Catalog, lease: Lease, line: str) -> None:
        for _ in range(3):
            self.cut(catalog, lease, line)
        fork = catalog.create_lineage(lease, (line, 2), opening=True)
        assert catalog.head_lineage("s") == line and catalog.find("s", "newest").place == (line, 3)
        assert catalog.unopened("s") == {fork} and [row.lineage for row in catalog.lineages("s")] == [
            line,
            fork,
        ]
        assert catalog.find("s", "newest", fork).place == (line, 2) and catalog.failures(fork) == {}
        for _ in range(2):
            catalog.opened(lease, fork)
            assert catalog.head_lineage("s") == fork and catalog.find("s", "newest").place == (line, 2)
        assert catalog.unopened("s") == set()
        # A beginning has come up with its first cut.
        fresh = catalog.create_lineage(lease, None, opening=True)
        begun = self.begin(catalog, lease, fresh)
        assert catalog.head_lineage("s") == fork and catalog.unopened("s") == {fresh}
        self.commit(catalog, lease, fresh, begun, "m")
        assert catalog.head_lineage("s") == fresh and catalog.unopened("s") == set()
        late = catalog.create_lineage(lease, None, opening=True)
        catalog.acquire_lease("s", owner(7), 10.0, 1e9)
        with pytest.raises(Fenced):
            catalog.opened(lease, late)
        assert catalog.head_lineage("s") == fresh
        first = catalog.create_lineage(catalog.acquire_lease("t", owner(8), 10.0, 0.0), None, opening=True)
        assert catalog.head_lineage("t") is None and catalog.unopened("t") == {first}
        with pytest.raises(CheckpointNotFound, match="none yet"):
            catalog.find("t", "newest")

    def test_the_longest_names_are_kept(self, catalog: Catalog) -> None:
        chance = random.Random(3)
        system, name, other = ("".join(chance.choices(LETTERS, k=NAME_BYTES)) for _ in range(3))
        lease = catalog.acquire_lease(system, owner(), 10.0, 0.0)
        line = catalog.create_lineage(lease, None)
        for birth, each in enumerate((name, other)):
            catalog.put_member(lease, line, each, birth, {})
        catalog.count_failure(lease, line, f"kill:{name}")
        self.begin(catalog, lease, line)
        assert catalog.systems() == [system] and catalog.members(line) == {name: (0, {}), other: (1, {})}
