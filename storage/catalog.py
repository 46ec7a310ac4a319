"""What a catalog must offer: leases, lineages, and the fate of every checkpoint.

The catalog is the one mutable place, and its row is the point of commit: ``begun -> committed | aborted``,
once. Whoever changes anything holds the lease of the system; every change is one transaction that first
compares the lease's token, so a writer that was replaced while it slept changes nothing (Fenced).

Ids of checkpoints and birth numbers are never used twice within a lineage, and a fork counts on from where
it left its origin. "Newest" is by number and by the order in which lineages were made, never by time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from cutline.errors import Corrupt, RefusedOption

from .authentic import Seals, StoreKey
from .effects import Claim, EffectRow, Ending, Rule, Verdict
from .owners import Owner
from .sinks import Origin

__all__ = (
    "COMMITTED",
    "Catalog",
    "CheckpointRow",
    "Choice",
    "Fate",
    "Lease",
    "LineageRow",
    "Owner",
    "Place",
    "check_label",
)

Fate = Literal["begun", "committed", "aborted"]
Place = tuple[str, int]
COMMITTED: tuple[Fate, ...] = ("committed",)
_LABEL_MAX = 200


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to change a system, until somebody with a higher token comes."""

    system: str
    token: int
    owner: Owner


@dataclass(frozen=True, slots=True)
class LineageRow:
    """A line of checkpoints. ``origin``: where it forked off; ``order``: by creation in the store."""

    lineage: str
    system: str
    order: int
    origin: Place | None
    epoch: int
    next_checkpoint: int
    next_birth: int


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint. Times in seconds since 1970.

    ``parent``: the newest committed cut when it was begun. ``blobs``: every blob the cut needs.
    ``horizon``: the next free id when its fate was decided; until all ids below are decided, somebody may
    still be writing something that builds on it. ``condemned``: retention has given it up; it can no
    longer be found and its blobs are being removed.
    """

    system: str
    lineage: str
    checkpoint: int
    kind: Literal["full", "delta"]
    label: str | None
    fate: Fate
    begun_at: float
    decided_at: float | None
    epoch: int
    parent: Place | None
    manifest_key: str | None = None
    manifest_digest: bytes | None = None
    blobs: tuple[str, ...] = ()
    roster: tuple[str, ...] = ()
    reason: str | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    horizon: int | None = None
    condemned: bool = False

    @property
    def place(self) -> Place:
        return self.lineage, self.checkpoint

    def __str__(self) -> str:
        label = f" {self.label!r}" if self.label else ""
        return f"checkpoint {self.checkpoint}{label} of lineage {self.lineage} ({self.system})"


# Given a system's lineages and all its checkpoints: which committed ones may go.
Choice = Callable[[Sequence[LineageRow], Sequence[CheckpointRow]], Collection[Place]]


class Catalog(Protocol):
    """The contract of every catalog. Any thread and any process may call any verb at any time.

    ``now`` is in seconds since 1970, ``ttl`` in seconds. With a lease: Fenced if its token is no longer the
    newest. All raise StorageError.
    """

    def acquire_lease(self, system: str, owner: Owner, ttl: float, now: float) -> Lease:
        """A lease with a higher token than all before. Raises StoreInUse, naming the owner, unless the last
        lease ran out, was released, or its owner is on this machine and dead."""
        ...

    def renew_lease(self, lease: Lease, ttl: float, now: float) -> None: ...

    def release_lease(self, lease: Lease) -> None:
        """Lets the next one in. No error if the lease is no longer ours."""
        ...

    def lease_holder(self, system: str) -> Owner | None:
        """Who holds the lease, alive or not; None if it was released or never taken."""
        ...

    def held_lease(self, system: str) -> Lease | None:
        """The lease as it stands, for who collects beside its owner; None if released or never taken.

        It works for whoever has it, and no longer when the next owner comes (Fenced).
        """
        ...

    @property
    def seals(self) -> Seals:
        """By which key rows are sealed. Its ``key`` is None where that is not here: then every verb that
        changes anything raises ForeignStore, and nothing that is read is known to be authentic."""
        ...

    def take_over(self, key: StoreKey) -> None:
        """Seals every row anew with another key; see `sealing`. Raises StoreInUse."""
        ...

    def generation(self) -> str:
        """Another one for a catalog that was made again."""
        ...

    def systems(self) -> list[str]:
        """Names of all systems with a lineage, in order of creation."""
        ...

    def create_lineage(self, lease: Lease, parent: Place | None, *, opening: bool = False) -> str:
        """A new lineage; with ``parent`` a fork of that committed cut. Raises CheckpointNotFound.

        ``opening``: the system does not go on there before `opened` is said of it, or it has a cut.
        """
        ...

    def opened(self, lease: Lease, lineage: str) -> None:
        """The lineage has come up: from now on the system goes on there."""
        ...

    def unopened(self, system: str) -> set[str]:
        """Lineages that are being opened, or whose opening has failed."""
        ...

    def head_lineage(self, system: str) -> str | None:
        """The one that the system goes on with: the newest that has come up. None: there is none."""
        ...

    def lineages(self, system: str) -> list[LineageRow]:
        """In order of creation."""
        ...

    def bump_epoch(self, lease: Lease, lineage: str) -> int:
        """The next epoch of a lineage: one that no lineage of this catalog has had."""
        ...

    def epoch(self, lineage: str) -> int: ...

    def next_birth(self, lease: Lease, lineage: str) -> int: ...

    def begin(
        self,
        lease: Lease,
        lineage: str,
        *,
        kind: Literal["full", "delta"],
        label: str | None,
        roster: Sequence[str],
        now: float,
    ) -> int:
        """A new id with fate ``begun``. Raises DuplicateLabel, RefusedOption (a label that cannot be one)."""
        ...

    def commit(
        self,
        lease: Lease,
        lineage: str,
        checkpoint: int,
        *,
        manifest_key: str,
        manifest_digest: bytes,
        blobs: Sequence[str],
        summary: dict[str, Any],
        now: float,
        listing: str | None = None,
    ) -> CheckpointRow:
        """begun -> committed; returns the row. ``listing``: for people, see `listing`.

        Raises FateDecided, CheckpointNotFound; Corrupt if it names a blob of another checkpoint that no
        living cut holds any more.

        After any other error the outcome is unknown: ask for the fate.
        """
        ...

    def abort(self, lease: Lease, lineage: str, checkpoint: int, reason: str, now: float) -> None:
        """begun -> aborted; nothing happens if it was aborted before. Raises FateDecided if committed."""
        ...

    def fate(self, lineage: str, checkpoint: int) -> Fate:
        """Raises CheckpointNotFound for an id never begun, or decided long ago and removed."""
        ...

    def undecided(self, lineage: str) -> list[int]: ...

    def checkpoints(
        self,
        system: str,
        *,
        lineage: str | None = None,
        fates: Collection[str] = COMMITTED,
        damage: list[Corrupt] | None = None,
    ) -> list[CheckpointRow]:
        """Ascending by order of lineage, then id; without condemned ones.

        Raises Corrupt for a damaged row; with ``damage`` it is left out and the error appended there.
        """
        ...

    def find(self, system: str, point: str, lineage: str | None = None) -> CheckpointRow:
        """A committed checkpoint by "newest", number, label, "lineage/number" or its manifest's hash.

        Without ``lineage``, the newest lineage and its ancestors come first, then the others, newest
        first. Raises CheckpointNotFound, which lists what there is.
        """
        ...

    def put_member(self, lease: Lease, lineage: str, name: str, birth: int, doc: dict[str, Any]) -> None: ...

    def members(self, lineage: str) -> dict[str, tuple[int, dict[str, Any]]]: ...

    def remove_member(self, lease: Lease, lineage: str, name: str) -> None: ...

    def count_failure(self, lease: Lease, lineage: str, key: str, occurrence: str = "") -> int:
        """One more failure of ``key``; returns how many there were. No rollback undoes it.

        Whoever does not hear the answer asks again: what has the same ``occurrence`` counts once.
        """
        ...

    def failures(self, lineage: str) -> dict[str, int]:
        """The counts by key, for people."""
        ...

    def pin(self, lease: Lease, lineage: str, checkpoint: int, label: str) -> None:
        """Labels a committed cut: it stays until unpinned. Raises DuplicateLabel, CheckpointNotFound."""
        ...

    def unpin(self, lease: Lease, lineage: str, checkpoint: int, label: str) -> None:
        """Takes the label off. Raises CheckpointNotFound if it is not there."""
        ...

    def condemn(self, lease: Lease, choose: Choice) -> tuple[list[LineageRow], list[CheckpointRow]]:
        """Gives up what ``choose`` says, in one transaction; returns the system as it is then, with condemned
        and aborted rows."""
        ...

    def drop(self, lease: Lease, places: Collection[Place]) -> None:
        """Removes rows that are condemned or aborted."""
        ...

    def unlisted(self, system: str) -> list[Place]:
        """Committed cuts without a listing (`listing`). Makes the table in a catalog that has none."""
        ...

    def put_listing(self, lease: Lease, place: Place, listing: str) -> None:
        """The listing of a cut that has none."""
        ...

    def tidy(self) -> None:
        """Does what can wait until nobody waits for it."""
        ...

    def raise_horizon(self, lease: Lease, lineage: str, checkpoint: int) -> None:
        """Something irreversible left from that committed cut: no recovery goes below it by itself.

        A lower one than before changes nothing. Raises CheckpointNotFound.
        """
        ...

    def horizon(self, lineage: str) -> int:
        """The highest checkpoint that `raise_horizon` was told; 0 if none."""
        ...

    def journal(
        self,
        lease: Lease,
        lineage: str,
        endings: Sequence[Ending],
        claims: Sequence[Claim],
        is_over: Callable[[EffectRow], bool],
        now: float,
    ) -> tuple[list[EffectRow | None], list[Verdict]]:
        """Records what became of effects, then judges claims and writes those that are granted, in one
        transaction; a granted claim of a commit-gated effect raises the horizon to its cut.

        Returns for each ending the outcome that its request has now (None: none yet), and a verdict for each
        claim; see `effects`.
        """
        ...

    def effects(self, lineage: str) -> list[EffectRow]:
        """All attempts of a lineage's effects, by key and attempt."""
        ...

    def settle(self, system: str, row: EffectRow, lease: Lease | None = None) -> EffectRow:
        """Records the outcome of a question to a person, unless it has one; returns the one that it has.

        Raises the horizon to the question's checkpoint. The one verb that changes something and needs no
        lease: what was recorded first counts.
        """
        ...

    def show_questions(self, lease: Lease, lineage: str, checkpoint: int) -> None:
        """Raises the horizon to a checkpoint whose questions people can see."""
        ...

    def outcomes(self, lineage: str, keys: Collection[str]) -> dict[str, EffectRow]:
        """The outcomes that there are under these keys of effects and questions."""
        ...

    def effects_rule(self, lineage: str) -> Rule:
        """What becomes of a lineage's effects: as was said last, else a fork's are blocked and others run."""
        ...

    def said_of_effects(self, lineage: str) -> Rule | None:
        """What was said of a lineage's effects; None: nothing."""
        ...

    def rule_effects(self, lease: Lease, lineage: str, rule: Rule) -> None:
        """Says what becomes of a lineage's effects, in place of what was said before."""
        ...

    def put_effects(self, lease: Lease, rows: Sequence[EffectRow]) -> None:
        """Puts in attempts of another lineage, with their outcomes, under the lineages that they name."""
        ...

    def effects_done(
        self, lease: Lease, lineage: str, done: Collection[tuple[str, int]], gone: Collection[str]
    ) -> None:
        """Notes which committed cut has the outcomes of these keys, and removes the rows of others."""
        ...

    def publishing(self, lease: Lease, lineage: str, checkpoint: int) -> None:
        """What that committed cut holds is about to be published: raises the horizon to it."""
        ...

    def published(self, lease: Lease, numbers: Mapping[tuple[str, Origin], int]) -> None:
        """Notes, by sink and origin, the number up to which is published; lower ones change nothing."""
        ...

    def output(self, lineages: Iterable[str]) -> dict[tuple[str, Origin], int]:
        """What `published` was told of what was emitted in these lineages."""
        ...

    def refill(
        self, system: str, lines: Sequence[LineageRow], rows: Sequence[CheckpointRow], *, token: int
    ) -> None:
        """Puts in a system that the catalog does not know, as it stands, in one transaction.

        For a catalog that is made again. Lineages are numbered anew, in this order; leases go on above
        ``token``. Raises Misuse for a system that
        has a lineage, or a lease that was not released.
        """
        ...

    def adopt(
        self, lease: Lease, line: LineageRow, row: CheckpointRow, answers: Sequence[EffectRow] = ()
    ) -> CheckpointRow:
        """A new lineage with one committed cut, whose blobs are durable, in one transaction; ``answers`` are
        outcomes of questions to people that the cut asks.

        The lineage becomes the newest; ``line.order`` and ``row.horizon`` are not used. Raises Misuse for a
        lineage that the catalog knows; Corrupt if it names a blob of another checkpoint that no living cut
        holds.
        """
        ...

    def close(self) -> None: ...


def check_label(label: str) -> str:
    """The label, if it can be told from a number and from "newest" and printed on one line."""
    if not label or len(label) > _LABEL_MAX or label != label.strip():
        raise RefusedOption(f"a label has 1 to {_LABEL_MAX} characters and no space around: {label!r:.80}")
    if label == "newest" or label.isdecimal() or "/" in label:
        raise RefusedOption(
            f"label {label!r} could be taken for a checkpoint's number or place: choose another"
        )
    if any(ord(letter) < 32 or ord(letter) == 127 or 0xD800 <= ord(letter) < 0xE000 for letter in label):
        raise RefusedOption(f"label {label!r} has characters that cannot be printed: leave them out")
    return label
