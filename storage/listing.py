"""For people and their tools: which participants a checkpoint has, by one SQL query.

Beside the sealed rows lies for each committed checkpoint a text of JSON, and a view makes rows of it
(docs/format.md has the query). Nothing of Cutline reads them. They are written with the row, or, for a cut
that came another way (an import, a catalog made again or by an older version), by the next sweep.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

from .authentic import Seals
from .catalog import Lease, Place
from .manifest import Manifest
from .rows import Connection, upsert
from .verbs import TableDatabase, verb

if TYPE_CHECKING:
    from .leases import LeaseTable

__all__ = ("LISTINGS", "POSTGRES_VIEW", "SQLITE_VIEW", "Listing", "listing_of")

LISTINGS = """
CREATE TABLE IF NOT EXISTS listings (
    lineage TEXT NOT NULL, checkpoint INTEGER NOT NULL, participants TEXT NOT NULL,
    PRIMARY KEY (lineage, checkpoint)
)
"""
# What comes between these is a matter of the database.
_VIEW = """
 participants AS
SELECT l.system, c.lineage, c.checkpoint, c.label, {columns}
FROM checkpoints c
JOIN lineages l ON l.lineage = c.lineage
JOIN listings t ON t.lineage = c.lineage AND t.checkpoint = c.checkpoint
CROSS JOIN {rows}
WHERE c.fate = 'committed' AND c.condemned = 0
"""
SQLITE_VIEW = "CREATE VIEW IF NOT EXISTS" + _VIEW.format(
    columns="j.key AS participant, json_extract(j.value, '$[0]') AS birth,"
    " json_extract(j.value, '$[1]') AS kind, json_extract(j.value, '$[2]') AS bytes,"
    " json_extract(j.value, '$[3]') AS packs",
    rows="json_each(t.participants) j",
)
POSTGRES_VIEW = "CREATE OR REPLACE VIEW" + _VIEW.format(
    columns="j.key AS participant, (j.value->>0)::bigint AS birth, j.value->>1 AS kind,"
    " (j.value->>2)::bigint AS bytes, (j.value->>3)::bigint AS packs",
    rows="json_each(t.participants::json) j",
)
_PUT = upsert("listings", ("lineage", "checkpoint"), ("participants",))


def listing_of(manifest: Manifest) -> str:
    """By participant: birth, kind, bytes of its own pack, packs that its image needs."""
    listed = {
        name: [image.birth, image.ref.kind, image.ref.size, len(image.ref.chain)]
        for name, image in manifest.images.items()
    }
    return json.dumps(listed, separators=(",", ":"), sort_keys=True)


class Listing:
    """Part of `TableCatalog`. ``has_listings``: whether the table is known to be there."""

    database: TableDatabase
    seals: Seals
    _leases: LeaseTable
    has_listings = False
    # How the database says that the view is there, and what makes table and view.
    listings_there: ClassVar[str]
    listings_made: ClassVar[tuple[str, ...]]

    def ready_listings(self) -> None:
        """Makes table and view in a catalog of an older version; new ones have them."""
        if not self.has_listings:
            self._make_listings()
            self.has_listings = True

    @verb
    def _make_listings(self) -> None:
        with self.database.reading() as connection:
            if connection.execute(self.listings_there).fetchone() is not None:
                return
        with self.database.writing() as connection:
            for statement in self.listings_made:
                connection.execute(statement)

    def _put_listing(self, connection: Connection, place: Place, listing: str | None) -> None:
        if listing is not None and self.has_listings:
            connection.execute(_PUT, (*place, listing))

    def _drop_listing(self, connection: Connection, place: Place) -> None:
        if self.has_listings:
            connection.execute("DELETE FROM listings WHERE lineage = ? AND checkpoint = ?", place)

    def unlisted(self, system: str) -> list[Place]:
        self.ready_listings()
        return self._unlisted(system)

    @verb
    def _unlisted(self, system: str) -> list[Place]:
        with self.database.reading() as connection:
            found = connection.execute(
                "SELECT c.lineage, c.checkpoint FROM checkpoints c JOIN lineages l ON l.lineage = c.lineage"
                " LEFT JOIN listings t ON t.lineage = c.lineage AND t.checkpoint = c.checkpoint"
                " WHERE l.system = ? AND c.fate = 'committed' AND c.condemned = 0 AND t.lineage IS NULL",
                (system,),
            )
            return [(lineage, checkpoint) for lineage, checkpoint in found]

    @verb
    def put_listing(self, lease: Lease, place: Place, listing: str) -> None:
        self.seals.need_key()
        self.ready_listings()
        with self.database.writing() as connection:
            self._leases.fence(connection, lease)
            self._put_listing(connection, place, listing)
