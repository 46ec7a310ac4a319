"""Small systems to test with: cuts of a few named values, in any store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cutline.storage import (
    CheckpointRow,
    ImageRef,
    Lease,
    Manifest,
    MemberImage,
    Owner,
    Piece,
    Region,
    Store,
    pack_key,
    read_image,
    write_image,
)
from cutline.storage.authentic import StoreKey
from cutline.storage.codec import digest_of

SYSTEM = "market"
# For catalogs that are made without a store.
KEY = StoreKey(bytes(range(32)))


def owner(pid: int = 1, what: str = "test") -> Owner:
    """Somebody on another machine: whether he lives cannot be told."""
    return Owner("elsewhere", pid, 0.0, 1, what)


def lease_of(store: Store, system: str = SYSTEM, now: float = 0.0) -> Lease:
    return store.catalog.acquire_lease(system, owner(), 1000.0, now)


@dataclass
class Scene:
    """A coordinator and its participants, in few words: each participant's state is texts by name."""

    store: Store
    lease: Lease
    lineage: str
    refs: dict[str, ImageRef] = field(default_factory=dict)
    known: dict[str, dict[str, str]] = field(default_factory=dict)
    epoch: int = 1

    @classmethod
    def new(cls, store: Store, system: str = SYSTEM, now: float = 0.0) -> Scene:
        lease = lease_of(store, system, now)
        return cls(store, lease, store.catalog.create_lineage(lease, None))

    @classmethod
    def resumed(
        cls, store: Store, system: str = SYSTEM, now: float = 10_000.0, lease: Lease | None = None
    ) -> Scene:
        """As after a crash: a new owner decides what is undecided and goes back to the newest whole cut."""
        lease = lease or lease_of(store, system, now)
        lineage = store.catalog.head_lineage(system)
        if lineage is None:
            return cls(store, lease, store.catalog.create_lineage(lease, None))
        for checkpoint in store.catalog.undecided(lineage):
            store.catalog.abort(lease, lineage, checkpoint, "resumed", now)
        scene = cls(store, lease, lineage, epoch=store.catalog.bump_epoch(lease, lineage))
        if store.catalog.checkpoints(system):
            scene.load(store.newest_whole(system, lineage))
        return scene

    def load(self, row: CheckpointRow) -> None:
        manifest = self.store.read_manifest(row)
        self.refs = {name: image.ref for name, image in manifest.images.items()}
        self.known = {name: dict(state) for name, state in states(self.store, row).items()}

    def fork(self, row: CheckpointRow) -> Scene:
        lineage = self.store.catalog.create_lineage(self.lease, row.place)
        scene = Scene(self.store, self.lease, lineage, epoch=self.store.catalog.epoch(lineage) + 1)
        scene.load(row)
        return scene

    def begin(self, full: bool, label: str | None, roster: list[str]) -> int:
        return self.store.catalog.begin(
            self.lease, self.lineage, kind="full" if full else "delta", label=label, roster=roster, now=1.0
        )

    def write(self, checkpoint: int, name: str, state: Mapping[str, str], full: bool) -> ImageRef:
        parent = None if full else self.refs.get(name)
        before = self.known.get(name, {}) if parent else {}
        return write_image(
            self.store.blobs,
            pack_key(self.lease.system, self.lineage, self.epoch, checkpoint, name, 1),
            header={"participant": name},
            sections={"mailbox": b""},
            pieces=[piece(key, value, before) for key, value in state.items()],
            regions=[Region(1, 4096, ((0, bytes(4096)),) if parent is None else ())],
            parent=parent,
        )

    def cut(
        self,
        state: Mapping[str, Mapping[str, str]],
        *,
        full: bool = False,
        label: str | None = None,
        now: float = 2.0,
    ) -> CheckpointRow:
        """A whole checkpoint, from begin to commit."""
        checkpoint = self.begin(full, label, list(state))
        refs = {name: self.write(checkpoint, name, state[name], full) for name in state}
        return self.commit(checkpoint, state, refs, label, now)

    def commit(
        self,
        checkpoint: int,
        state: Mapping[str, Mapping[str, str]],
        refs: dict[str, ImageRef],
        label: str | None = None,
        now: float = 2.0,
    ) -> CheckpointRow:
        row = self.store.commit_cut(self.lease, self.manifest(checkpoint, refs, label), {"n": 1}, now)
        self.refs = refs
        self.known = {name: dict(values) for name, values in state.items()}
        return row

    def manifest(self, checkpoint: int, refs: dict[str, ImageRef], label: str | None = None) -> Manifest:
        images = {name: MemberImage(1, ref) for name, ref in refs.items()}
        kind = "full" if all(ref.kind == "full" for ref in refs.values()) else "delta"
        return Manifest(
            self.lease.system,
            self.lineage,
            checkpoint,
            self.epoch,
            "full" if kind == "full" else "delta",
            label,
            None,
            2.0,
            images,
            {"open": []},
        )


def piece(name: str, value: str, before: Mapping[str, str]) -> Piece:
    content = value.encode()
    return Piece(name, digest_of(content), None if before.get(name) == value else content)


def states(store: Store, row: CheckpointRow) -> dict[str, dict[str, str]]:
    """What a cut restores to."""
    found = {}
    for name, image in store.read_manifest(row).images.items():
        read = read_image(store.blobs, image.ref)
        found[name] = {key: value.decode() for key, value in read.pieces}
    return found
