"""The catalog's part in output: how far each sink is, and the horizon that publishing raises.

Rows of the table of effects, whose keys no effect has. A sink that is a file or a table knows by itself how
far it is; a function does not, and people ask the catalog. A number belongs to the lineage that it was
counted in, so a fork finds what its origin has published.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .catalog import Lease
from .codec import canonical, decode
from .effect_table import PUT_EFFECT, EffectTable
from .rows import Connection
from .sinks import Origin
from .verbs import verb

__all__ = ("OutputTable",)

_START = "@out:"


def _key(sink: str, origin: Origin) -> str:
    return f"{_START}{len(sink)}:{sink}:{origin.birth}:{origin.participant}"


class OutputTable(EffectTable):
    """See the module's head."""

    @verb
    def publishing(self, lease: Lease, lineage: str, checkpoint: int) -> None:
        """What that committed cut holds is about to leave: raises the horizon to it."""
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            self._never_below(connection, lineage, checkpoint)

    @verb
    def published(self, lease: Lease, numbers: Mapping[tuple[str, Origin], int]) -> None:
        """Notes how far sinks are. A lower number than before changes nothing."""
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            self._need_effects(connection)
            for (sink, origin), number in numbers.items():
                place = (origin.lineage, _key(sink, origin), origin.birth)
                known = self._numbers(connection, "lineage = ? AND key = ? AND attempt = ?", place)
                if number > known.get((sink, origin), 0):
                    doc = canonical({"sink": sink, "participant": origin.participant, "number": number})
                    values = (*place, doc)
                    connection.execute(PUT_EFFECT, (*values, self.seals.seal("effects", *values)))

    @verb
    def output(self, lineages: Iterable[str]) -> dict[tuple[str, Origin], int]:
        """How far sinks are with what was emitted in these lineages."""
        found: dict[tuple[str, Origin], int] = {}
        with self.database.reading() as connection:
            if self._has_effects(connection):
                where = f"lineage = ? AND substr(key, 1, {len(_START)}) = '{_START}'"
                for lineage in lineages:
                    found.update(self._numbers(connection, where, (lineage,)))
        return found

    def _numbers(
        self, connection: Connection, where: str, values: tuple[Any, ...]
    ) -> dict[tuple[str, Origin], int]:
        rows = connection.execute(f"SELECT * FROM effects WHERE {where}", values)
        numbers = {}
        for *columns, found_seal in rows:
            lineage, _, birth, raw = columns
            what = f"the output of lineage {lineage}"
            self.seals.check(found_seal, what, "effects", *columns, lineage=lineage)
            doc = decode(raw)
            numbers[doc["sink"], Origin(lineage, doc["participant"], birth)] = int(doc["number"])
        return numbers
