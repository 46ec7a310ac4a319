"""Rows of effects as people see them, what people say of them, and which nobody needs any more."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgpack

from cutline.barrier import Member
from cutline.errors import CheckpointNotFound, Misuse, RefusedOption, RemoteError
from cutline.participant.effect_request import EffectRequest
from cutline.participant.messages import pack_error, pack_value
from cutline.storage import CheckpointRow, Store
from cutline.storage.catalog import Catalog, Lease
from cutline.storage.effects import ORIGIN, PERSON, RULES, EffectRow, Ending, Rule, State, final_of
from cutline.storage.image import read_sections

__all__ = (
    "KEY_SECONDS",
    "chosen_rule",
    "forgotten",
    "open_attempt",
    "requests_of",
    "resolved",
    "row_doc",
)

# Seconds that the outcome under a key of the user's own, or of a question, is remembered.
KEY_SECONDS = 7 * 86400.0
# Outcomes that only a fork of an older cut could ask for: how many are kept at most, and bytes of their
# results.
FOR_FORKS, FOR_FORKS_BYTES = 1000, 64 << 20


def chosen_rule(effects: object) -> Rule:
    """What is to become of a lineage's effects. Raises RefusedOption."""
    for rule in RULES:
        if rule == effects:
            return rule
    raise RefusedOption(f'effects is "block", "recorded" or "live", not {effects!r}')


def requests_of(
    store: Store, row: CheckpointRow, names: Container[str] | None = None
) -> Iterator[tuple[Member, EffectRequest]]:
    """What participants of a checkpoint, all or some, have asked of the world and not been answered there."""
    for name, image in sorted(store.read_manifest(row).images.items()):
        if names is not None and name not in names:
            continue
        raw = read_sections(store.blobs, image.ref)["calls"]
        doc = msgpack.unpackb(raw, strict_map_key=False, max_bin_len=len(raw), max_str_len=len(raw))
        for each in doc.get("effects", ()):
            yield Member(name, image.birth), EffectRequest.from_doc(each)


def row_doc(row: EffectRow) -> dict[str, Any]:
    """An attempt as ``cutline effects --json`` has it."""
    return {
        "participant": row.participant,
        "birth": row.birth,
        "number": row.number,
        "function": row.function,
        "key": row.key[2:],
        "attempt": row.attempt,
        "repeatable": row.repeatable,
        "state": row.state or "claimed",
        "by": row.by or None,
        "checkpoint": row.checkpoint,
        "epoch": row.epoch,
        "pid": row.executor["pid"],
        "claimed_at": row.claimed_at,
        "decided_at": row.decided_at,
        "deadline": row.deadline,
        "bytes": row.blob[2] if row.blob is not None else len(row.answer or b""),
    }


def open_attempt(rows: Iterable[EffectRow], name: str) -> EffectRow:
    """The attempt that a person means by ``PARTICIPANT#NUMBER``, or by a key.

    Raises:
        CheckpointNotFound: none is open there.
    """
    by_key: dict[str, list[EffectRow]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(row)
    last = [found[-1] for found in by_key.values() if final_of(found) is None]
    open_ones = [row for row in last if not row.state]
    found = [row for row in open_ones if name in (f"{row.participant}#{row.number}", row.key[2:])]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{row.participant}#{row.number}" for row in open_ones) or "none"
    raise CheckpointNotFound(f"no effect {name!r} has an attempt without an outcome; there are: {names}")


def resolved(
    catalog: Catalog, lease: Lease, lineage: str, doc: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """Records what a person says: ``done`` (JSON), ``failed`` (a text), or neither: surely not done."""
    row = open_attempt(catalog.effects(lineage), doc["effect"])
    state: State = "skipped"
    answer: bytes | None = None
    if doc.get("done") is not None:
        try:
            value = json.loads(doc["done"])
        except ValueError as error:
            raise Misuse(f"the result must be JSON: {error}") from error
        state, answer = "done", msgpack.packb(pack_value(value, participant=row.participant, where="result"))
    elif doc.get("failed") is not None:
        failed = RemoteError(f"effect {row.function} failed, says a person: {doc['failed']}")
        state, answer = "error", msgpack.packb(pack_error(failed, participant=row.participant))
    ending = Ending(row.key, row.attempt, "", state, answer, None, "person")
    catalog.journal(lease, lineage, [ending], [], lambda _row: False, now)
    return {"effect": f"{row.participant}#{row.number}", "state": state}


def forgotten(
    rows: Sequence[EffectRow],
    done: Mapping[Member, tuple[int, int, frozenset[int]]],
    cuts: Sequence[int],
    now: float,
    origin: int = 0,
) -> tuple[list[tuple[str, int]], list[EffectRow]]:
    """(keys whose outcome a committed cut has now, and which; rows that no cut can ask for any more).

    ``done``: of each participant a committed cut, the number of its next request there, and what was pending.
    ``cuts``: the committed cuts there are. ``origin``: where a fork begins: a claim of the fork that was made
    before any cut had the request is in none up to there.
    """
    fresh: list[tuple[str, int]] = []
    gone: list[EffectRow] = []
    for_forks: list[EffectRow] = []
    kept: set[str] = set()
    for row in rows:
        said = done.get(Member(row.participant, row.birth))
        since = row.done
        if since is None and said is not None and row.number < said[1] and row.number not in said[2]:
            since = said[0]
            fresh.append((row.key, since))
        # After a loss of that cut the request may be pending again.
        pending = said is not None and row.number in said[2]
        by_name = row.key.startswith("u:") or row.function == PERSON
        known = by_name and now - (row.decided_at or row.claimed_at) <= KEY_SECONDS
        # In a fork, that an outcome of the origin's was given out.
        given = row.by == ORIGIN
        kept_by = since is None or any(_first(row, origin) <= cut < since for cut in cuts)
        if kept_by or pending or known or given:
            kept.add(row.key)
        elif any(cut < row.since for cut in cuts):
            for_forks.append(row)
            gone.append(row)
        else:
            gone.append(row)
    kept.update(_for_forks(for_forks))
    # All attempts under a key go together, or none.
    gone = [row for row in gone if row.key not in kept]
    lost = {row.key for row in gone}
    return [each for each in dict.fromkeys(fresh) if each[0] not in lost], gone


def _for_forks(rows: Iterable[EffectRow]) -> Iterator[str]:
    """Of what a recovery will not ask for, and a fork of a cut that is there may: the newest, so many."""
    room = FOR_FORKS_BYTES
    final = [row for row in rows if row.is_final]
    for row in sorted(final, key=lambda row: row.decided_at or 0.0, reverse=True)[:FOR_FORKS]:
        room -= row.blob[2] if row.blob is not None else len(row.answer or b"")
        if room < 0:
            return
        yield row.key


def _first(row: EffectRow, origin: int) -> int:
    """The first cut that may have the request."""
    return row.since or (origin + 1 if origin else 0)
