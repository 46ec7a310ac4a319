"""The catalog's table of effects: claims, outcomes, and whether a lineage's effects run.

Part of `TableCatalog`. What waits together is written in one transaction, under the lease: a coordinator that
was replaced grants nothing and records nothing. A claim of a commit-gated effect raises the lineage's horizon
in the same transaction.

Outcomes of questions to people are rows too. A person needs no lease to answer, because what was recorded
first counts: whoever comes second finds it.

A catalog that was made before there were effects has no such table; it gets one with the first claim.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

from .catalog import Lease
from .codec import canonical, decode
from .collect import MADE_WHOLE
from .effects import BLOCK, LIVE, Claim, EffectRow, Ending, Rule, Verdict, final_of, judge, takes
from .filling import Filling
from .rows import EFFECTS, Connection, lineage_of, upsert
from .verbs import verb

__all__ = ("PUT_EFFECT", "START_SECONDS", "EffectTable")

# Seconds after a claim in which its process may begin to call.
START_SECONDS = 10.0

# Seconds after which the use of an outcome is noted again.
USED_SECONDS = 60.0
# Keys that one statement looks for.
_AT_ONCE = 200
PUT_EFFECT = upsert("effects", ("lineage", "key", "attempt"), ("doc", "seal"))
# Keys of rows that are no effects begin so.
_OTHER = "@"
_RULE = f"{_OTHER}policy"
_FIELDS = tuple(field.name for field in dataclasses.fields(EffectRow))[3:]


class EffectTable(Filling):
    """See the module's head."""

    def _ddl(self, statement: str) -> str:
        """A statement that makes a table, as this database spells it."""
        return statement

    def _has_effects(self, connection: Connection) -> bool:
        found = connection.execute(self.database.table_named, ("effects",)).fetchone()
        return found is not None and found[0] is not None

    def _need_effects(self, connection: Connection) -> None:
        if not self._has_effects(connection):
            connection.execute(self._ddl(EFFECTS))

    def _refilled(self, connection: Connection, lineage: str) -> None:
        # What was done is not known any more: none runs until somebody has looked.
        self._need_effects(connection)
        self._put_rule(connection, lineage, BLOCK)

    def _take_answers(self, connection: Connection, answers: Sequence[EffectRow]) -> None:
        if answers:
            self._need_effects(connection)
        for row in answers:
            self._put_effect(connection, row)

    @verb
    def journal(
        self,
        lease: Lease,
        lineage: str,
        endings: Sequence[Ending],
        claims: Sequence[Claim],
        is_over: Callable[[EffectRow], bool],
        now: float,
    ) -> tuple[list[EffectRow | None], list[Verdict]]:
        """Records outcomes, then judges claims and writes those that are granted, in one transaction.

        Returns for each ending the outcome that its request has now, and a verdict for each claim.
        """
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            self._need_effects(connection)
            finals = [self._end(connection, lineage, ending, now) for ending in endings]
            verdicts = [self._claim(connection, lease, lineage, claim, is_over, now) for claim in claims]
        return finals, verdicts

    def _end(self, connection: Connection, lineage: str, ending: Ending, now: float) -> EffectRow | None:
        rows = self._effects_of(connection, lineage, ending.key)
        row = takes(rows, ending)
        if row is None:
            return final_of(rows)
        row = dataclasses.replace(
            row,
            state=ending.state,
            answer=ending.answer,
            blob=ending.blob,
            by=ending.by,
            decided_at=float(now),
        )
        self._put_effect(connection, row)
        return row if row.is_final else None

    def _claim(
        self,
        connection: Connection,
        lease: Lease,
        lineage: str,
        claim: Claim,
        is_over: Callable[[EffectRow], bool],
        now: float,
    ) -> Verdict:
        verdict = judge(self._effects_of(connection, lineage, claim.key), claim, is_over)
        if verdict.kind == "recorded" and verdict.row is not None:
            self._used_again(connection, verdict.row, now)
        if verdict.kind != "granted":
            return verdict
        if not self._is_current(connection, lineage, claim):
            return Verdict("stale")
        if not verdict.fresh:
            return verdict
        if verdict.closes is not None:
            self._put_effect(connection, dataclasses.replace(verdict.closes, state="unknown"))
        wait = None if claim.timeout is None else claim.timeout + START_SECONDS
        row = EffectRow(
            lineage,
            claim.key,
            verdict.attempt,
            claim.participant,
            claim.birth,
            claim.number,
            claim.function,
            claim.digest,
            claim.repeatable,
            claim.checkpoint,
            claim.since,
            claim.launch,
            dict(claim.executor),
            claim.epoch,
            lease.token,
            float(now),
            None if wait is None else float(now) + wait,
        )
        self._put_effect(connection, row)
        return verdict._replace(row=row)

    def _used_again(self, connection: Connection, row: EffectRow, now: float) -> None:
        """A request under a key of the user's own got the outcome of another one.

        The time for which that is remembered begins anew: else it could be over when a loss makes this
        request ask again, which would be a second call.
        """
        is_stale = row.decided_at is not None and now - row.decided_at > USED_SECONDS
        if is_stale and row.key.startswith("u:"):
            self._put_effect(connection, dataclasses.replace(row, decided_at=float(now)))

    def _is_current(self, connection: Connection, lineage: str, claim: Claim) -> bool:
        """Whether a claim is of this epoch, and its cut is committed; raises the horizon to that cut."""
        found = connection.execute("SELECT * FROM lineages WHERE lineage = ?", (lineage,)).fetchone()
        line = lineage_of(found, self.seals)
        if claim.epoch != line.epoch:
            return False
        first = line.origin[1] if line.origin is not None else 0
        if claim.repeatable or claim.checkpoint <= first:
            # One that the fork's origin holds is in every cut of the fork.
            return True
        # Retention may have given up that cut by now; the request is in all that came after it.
        newest = self._table.newest(connection, lineage)
        if newest is None or newest.checkpoint < claim.checkpoint:
            return False
        self._put_horizon(connection, lineage, claim.checkpoint)
        return True

    @verb
    def settle(self, system: str, row: EffectRow, lease: Lease | None = None) -> EffectRow:
        """Records the outcome of a question, unless it has one; returns the one that it has.

        The horizon is raised to the checkpoint of the question: what was answered stays asked. Without a
        lease it is somebody's answer, which counts whoever runs the system.
        """
        with self._writing() as connection:
            if lease is None:
                self._leases.queue(connection, system)
            else:
                self._leases.fence(connection, lease)
            self._need_effects(connection)
            known = final_of(self._effects_of(connection, row.lineage, row.key))
            if known is not None:
                return known
            self._put_effect(connection, row)
            self._never_below(connection, row.lineage, row.checkpoint)
        return row

    @verb
    def show_questions(self, lease: Lease, lineage: str, checkpoint: int) -> None:
        """Questions that were asked up to a checkpoint can be seen by people: nobody goes back below it."""
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            self._never_below(connection, lineage, checkpoint)

    def _never_below(self, connection: Connection, lineage: str, checkpoint: int) -> None:
        """Raises the horizon: something has left that only cuts from that one on hold."""
        found = connection.execute("SELECT * FROM lineages WHERE lineage = ?", (lineage,)).fetchone()
        origin = lineage_of(found, self.seals).origin
        # What the fork's origin holds is in every cut of the fork.
        if origin is None or checkpoint > origin[1]:
            self._put_horizon(connection, lineage, checkpoint)

    @verb
    def outcomes(self, lineage: str, keys: Collection[str]) -> dict[str, EffectRow]:
        """The outcomes that there are under these keys."""
        found: dict[str, EffectRow] = {}
        with self.database.reading() as connection:
            if self._has_effects(connection):
                rest = list(keys)
                while rest:
                    some, rest = rest[:_AT_ONCE], rest[_AT_ONCE:]
                    for row in self._effects_of(connection, lineage, *some):
                        if row.is_final:
                            found.setdefault(row.key, row)
        return found

    def _put_effect(self, connection: Connection, row: EffectRow) -> None:
        doc = canonical({name: getattr(row, name) for name in _FIELDS})
        values = (row.lineage, row.key, row.attempt, doc)
        connection.execute(PUT_EFFECT, (*values, self.seals.seal("effects", *values)))

    def _effects_of(self, connection: Connection, lineage: str, *keys: str) -> list[EffectRow]:
        where = f"lineage = ? AND key IN ({', '.join('?' * len(keys))})" if keys else "lineage = ?"
        found = connection.execute(
            f"SELECT * FROM effects WHERE {where} ORDER BY key, attempt", (lineage, *keys)
        )
        rows = []
        for *columns, found_seal in found:
            if not columns[1].startswith(_OTHER):
                rows.append(self._effect(columns, found_seal))
        return rows

    def _effect(self, columns: list[Any], found_seal: bytes) -> EffectRow:
        lineage, key, attempt, doc = columns
        what = f"effect {key} of lineage {lineage}"
        self.seals.check(found_seal, what, "effects", *columns, lineage=lineage)
        rest = decode(doc)
        rest["blob"] = None if rest["blob"] is None else tuple(rest["blob"])
        return EffectRow(lineage, key, attempt, **rest)

    @verb
    def effects(self, lineage: str) -> list[EffectRow]:
        """All attempts of a lineage, by key and attempt."""
        with self.database.reading() as connection:
            return self._effects_of(connection, lineage) if self._has_effects(connection) else []

    @verb
    def effects_rule(self, lineage: str) -> Rule:
        """What becomes of a lineage's effects: as was said, else a fork's are blocked and others run."""
        with self.database.reading() as connection:
            said = self._said(connection, lineage)
            if said is not None:
                return said
            row = connection.execute("SELECT * FROM lineages WHERE lineage = ?", (lineage,)).fetchone()
            begins = row is not None and lineage_of(row, self.seals).origin is None
            # Who opens a copy makes a fork.
            return LIVE if begins and not lineage.startswith(MADE_WHOLE) else BLOCK

    @verb
    def said_of_effects(self, lineage: str) -> Rule | None:
        """What was said of a lineage's effects; None: nothing."""
        with self.database.reading() as connection:
            return self._said(connection, lineage)

    def _said(self, connection: Connection, lineage: str) -> Rule | None:
        if not self._has_effects(connection):
            return None
        found = connection.execute(
            "SELECT * FROM effects WHERE lineage = ? AND key = ?", (lineage, _RULE)
        ).fetchone()
        if found is None:
            return None
        *columns, found_seal = found
        what = f"what is to become of the effects of lineage {lineage}"
        self.seals.check(found_seal, what, "effects", *columns, lineage=lineage)
        said: Rule = decode(columns[3])["policy"]
        return said

    @verb
    def rule_effects(self, lease: Lease, lineage: str, rule: Rule) -> None:
        """Says what becomes of a lineage's effects."""
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            self._need_effects(connection)
            self._put_rule(connection, lineage, rule)

    def _put_rule(self, connection: Connection, lineage: str, rule: Rule) -> None:
        values = (lineage, _RULE, 0, canonical({"policy": rule}))
        connection.execute(PUT_EFFECT, (*values, self.seals.seal("effects", *values)))

    @verb
    def put_effects(self, lease: Lease, rows: Sequence[EffectRow]) -> None:
        """Puts in attempts of another lineage, with their outcomes, under the lineages that they name."""
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            self._need_effects(connection)
            for row in rows:
                self._put_effect(connection, row)

    @verb
    def effects_done(
        self, lease: Lease, lineage: str, done: Collection[tuple[str, int]], gone: Collection[str]
    ) -> None:
        """Notes which committed cut has the outcomes of these keys, and removes the rows of others."""
        with self._writing() as connection:
            self._leases.fence(connection, lease)
            if not self._has_effects(connection):
                return
            for key, checkpoint in done:
                for row in self._effects_of(connection, lineage, key):
                    self._put_effect(connection, dataclasses.replace(row, done=checkpoint))
            for key in gone:
                connection.execute("DELETE FROM effects WHERE lineage = ? AND key = ?", (lineage, key))
