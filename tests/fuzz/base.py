"""What the fuzzer damages: stores with several cuts of real participants, and exports of one of them.

Everything is made from one seed, so that damage by a seed is the same damage in every run.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cutline.participant.capture import Capturer
from cutline.participant.restore import restore
from cutline.storage import CheckpointRow, ImageRef, Store, open_store, pack_key, read_image, write_image
from cutline.storage.catalog import Place
from cutline.storage.export import export_cut
from tests.storage.cast import SYSTEM, Scene

__all__ = ("FILE", "FOLDER", "Base", "Member", "State", "make", "state_of")

FILE, FOLDER = "cut.export", "cut.folder"
_NAMES = ("a", "b é/..")
_REGION = 1024

State = dict[str, tuple[Any, ...]]


class Member:
    """A participant: a few objects, a text that grows, an array in a region of its own."""

    def __init__(self, name: str) -> None:
        self.name, self.texts, self.table = name, [f"{name} begins"], np.zeros(700)
        self.known: dict[str, int] = {}

    def live_on(self, step: int) -> None:
        self.texts.append(f"step {step} of {self.name} " * 20)
        self.table[step * 7 : step * 7 + 5] = step + 0.5
        self.known[f"step {step}"] = step

    def seen(self) -> tuple[Any, ...]:
        """What it consists of, to be compared."""
        return self.name, tuple(self.texts), self.table.tobytes(), tuple(self.known.items())


@dataclass
class Base:
    """Folders: ``closed`` is a store that was closed, ``open`` one whose last commits are in the log alone,
    ``earlier`` the same with fewer cuts, ``foreign`` another store with a system of the same name.
    ``states``: what each cut restores to. ``rows``: the rows as they were written."""

    place: Path
    states: dict[Place, State] = field(default_factory=dict)
    rows: dict[Place, CheckpointRow] = field(default_factory=dict)

    @property
    def closed(self) -> Path:
        return self.place / "closed"

    @property
    def open(self) -> Path:
        return self.place / "open"

    @property
    def foreign(self) -> Path:
        return self.place / "foreign"

    @property
    def earlier(self) -> Path:
        return self.place / "earlier"


def state_of(store: Store, row: CheckpointRow) -> State:
    """What a cut restores to, read and unpickled as a participant does it."""
    found = {}
    for name, image in store.read_manifest(row).images.items():
        read = read_image(store.blobs, image.ref)
        member = restore(read.pieces, dict(read.regions), participant=name)
        assert isinstance(member, Member), f"{name} is {member!r}"
        found[name] = member.seen()
    return found


class _Cast:
    """A system of two participants."""

    def __init__(self, store: Store) -> None:
        self.scene = Scene.new(store)
        self.members = {name: Member(name) for name in _NAMES}
        self.capturers = {name: Capturer(name, region_min=_REGION) for name in _NAMES}
        self.last: int | None = None

    def cut(self, base: Base, *, full: bool, label: str | None = None) -> CheckpointRow:
        scene, store = self.scene, self.scene.store
        checkpoint = scene.begin(full, label, list(_NAMES))
        refs: dict[str, ImageRef] = {}
        for name, member in self.members.items():
            member.live_on(checkpoint)
            captured = self.capturers[name].capture(
                member, number=checkpoint, against=None if full else self.last
            )
            refs[name] = write_image(
                store.blobs,
                pack_key(SYSTEM, scene.lineage, scene.epoch, checkpoint, name, 1),
                header={"participant": name},
                sections={"mailbox": b"letters"},
                pieces=list(captured.pieces),
                regions=list(captured.regions),
                parent=None if full else scene.refs[name],
            )
            self.capturers[name].committed(checkpoint)
        row = scene.commit(checkpoint, {}, refs, label)
        self.last = checkpoint
        base.states[row.place] = {name: member.seen() for name, member in self.members.items()}
        base.rows[row.place] = row
        return row


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Names by lot are the same in every run."""
    lot = random.Random(seed)
    real, os.urandom = os.urandom, lot.randbytes
    try:
        yield
    finally:
        os.urandom = real


def make(place: Path) -> Base:
    """Makes all of it in a folder."""
    base = Base(place)
    with _seeded(1):
        with open_store(base.foreign, create=True) as store:
            other = Base(place)
            cast = _Cast(store)
            for number in range(3):
                cast.cut(other, full=number == 0)
            store.catalog.release_lease(cast.scene.lease)
        with closing(open_store(base.closed, create=True)) as store:
            cast = _Cast(store)
            for number in range(3):
                cast.cut(base, full=number == 0, label="kept" if number == 1 else None)
            store.catalog.put_member(cast.scene.lease, cast.scene.lineage, "a", 1, {"class": "Member"})
            store.catalog.tidy()
            shutil.copytree(base.closed, base.earlier)
            row = cast.cut(base, full=True)
            cast.cut(base, full=False)
            store.catalog.release_lease(cast.scene.lease)
            # While it is open, the last commits are in the log.
            shutil.copytree(base.closed, base.open)
            export_cut(store, row, place / FILE)
            export_cut(store, row, place / FOLDER, folder=True)
    for copied in (base.open, base.earlier):
        (copied / "catalog.sqlite-shm").unlink()
    return base
