"""`cutline.load`: the participants of a checkpoint as plain instances, without their system.

Nothing runs and nothing is written: no process, no socket, no lease. What is loaded are copies. `Cut.fork`
makes a new lineage of them, and that is the one thing that needs the lease and the key.
"""

from __future__ import annotations

import difflib
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from cutline.barrier import Member
from cutline.errors import Misuse, UnknownParticipant
from cutline.participant.allowing import allowing_only, check_allow
from cutline.participant.at_rest import Absent, Codec, Participant, parcels_of, participant_of
from cutline.participant.classes import Classes
from cutline.participant.driver import DRIVER
from cutline.participant.imaging import channels_of
from cutline.participant.pickling import loads
from cutline.participant.recapture import recaptured
from cutline.participant.restore import Restored, restore
from cutline.participant.unshelving import left_unread
from cutline.storage import CheckpointRow, Image, Manifest, Store, open_store, read_image, read_sections
from cutline.storage.authentic import foreign
from cutline.storage.forking import NewState, fork_cut
from cutline.storage.unread import Left

__all__ = (
    "Cut",
    "Forked",
    "Opener",
    "WithClasses",
    "load",
    "point_in",
    "read_cut",
    "refuse_unknown",
    "with_classes",
)


class Forked(NamedTuple):
    """What `Cut.fork` or `cutline.fork` made: ``point`` names it in every verb; ``changed``: whose state is
    another; ``system``: the name to start it by."""

    point: str
    changed: tuple[str, ...]
    system: str


def with_classes(channels: Any, states: Mapping[str, NewState]) -> Any:
    """What a manifest says of the channels, with the classes of the new states."""
    members = channels["members"]
    told = {name: {**members[name], "class_name": state.header["class"]} for name, state in states.items()}
    return {**channels, "members": {**members, **told}}


class Cut(Mapping[str, Any]):
    """A checkpoint at rest: a mapping of participants' names to their instances.

    ``participants`` has what else the checkpoint holds of each (`cutline.participant.at_rest.Participant`):
    class, version, messages that it had not handled, suspended calls. The driver is no participant of
    the mapping; its part is ``driver``, None if it was not loaded.
    """

    def __init__(
        self,
        row: CheckpointRow,
        participants: Mapping[str, Participant],
        everybody: Sequence[str],
        storage: str | os.PathLike[str],
        opener: Opener,
    ) -> None:
        self.system = row.system
        self.lineage = row.lineage
        self.checkpoint = row.checkpoint
        self.label = row.label
        self.taken_at = row.decided_at
        self.hash = (row.manifest_digest or b"").hex()
        self.driver = participants.get(DRIVER)
        self.participants = {name: each for name, each in participants.items() if name != DRIVER}
        self._everybody = everybody
        self._storage = storage
        self._opener = opener
        self._row = row

    def __getitem__(self, name: str) -> Any:
        found = self.participants.get(name)
        if found is None:
            if name in self._everybody:
                raise UnknownParticipant(
                    f"participant {name!r} is in {self._row} and was not loaded: name it in only=[...]",
                    participant=name,
                )
            raise _unknown(self._row, name, self._everybody)
        return found.instance

    def __iter__(self) -> Iterator[str]:
        return iter(self.participants)

    def __len__(self) -> int:
        return len(self.participants)

    def fork(self, label: str | None = None) -> Forked:
        """Makes a new lineage of this checkpoint with the instances as they are now; the old one stays.

        It becomes the newest of the system: the next start goes on from there, or from any other point with
        ``restore=``. Messages in flight and suspended calls are those of the checkpoint.

        Args:
            label: of the new checkpoint, which then stays until it is deleted.

        Raises:
            Misuse: nothing was changed, or the checkpoint was loaded with `main`.
            CannotCapture: a state cannot be saved; the message names the attribute's path.
            StoreInUse: the system runs.
            ForeignStore: the key of the store is not here.
            CheckpointNotFound: retention has taken the checkpoint.
        """
        if not self._opener.can_save:
            raise Misuse(
                f"{self._row} was loaded with main=: what is saved would name that module and not the "
                "script, whose classes are others; load and fork in the script, or keep its classes in "
                "a module"
            )
        with open_store(self._storage, create=False) as store:
            store.catalog.seals.need_key()
            # Retention may have taken it meanwhile.
            store.catalog.find(self.system, f"{self.lineage}/{self.checkpoint}")
            manifest = store.read_manifest(self._row)
            states = self.changes(store, manifest)
            if not states:
                raise Misuse(
                    f"nothing of {self._row} was changed; to go on from there as it stands:"
                    f" cutline.start(..., restore={self._row.checkpoint})"
                )
            channels = with_classes(manifest.channels, states)
            row = fork_cut(store, self._row, states, label=label, channels=channels)
        return Forked(f"{row.lineage}/{row.checkpoint}", tuple(states), row.system)

    def changes(self, store: Store, manifest: Manifest) -> dict[str, NewState]:
        """What of the instances differs from the checkpoint, by name. Raises CannotCapture."""
        found = {}
        for name, participant in self.participants.items():
            state = self._changed(store, manifest, name, participant.instance)
            if state is not None:
                found[name] = state
        return found

    def _changed(self, store: Store, manifest: Manifest, name: str, instance: Any) -> NewState | None:
        image = read_image(store.blobs, manifest.images[name].ref)

        def again(known: Restored) -> Any:
            return self._opener.state(name, image, known)

        captured = recaptured(name, instance, self.checkpoint, again)
        if captured is None:
            return None
        kind = {"class": captured.class_name, "class_version": captured.class_version}
        return NewState({**image.header, **kind}, captured.pieces, captured.regions)

    def __repr__(self) -> str:
        return f"<Cut {self._row}: {', '.join(self.participants) or 'no participants'}>"


def load(
    point: str | int = "newest",
    storage: str | os.PathLike[str] = "./checkpoints",
    *,
    name: str = "default",
    only: Iterable[str] | None = None,
    main: types.ModuleType | None = None,
    trust: bool = False,
    allow: Iterable[str] | None = None,
    lazy_maps: bool = False,
) -> Cut:
    """The participants of a checkpoint as plain instances. Nothing runs and nothing is written.

    Handles and Refs in their states are values; calling one raises OutsideHandler. Transients are made when
    they are first used, as in a participant.

    Args:
        point: "newest", a number, a label, "lineage/number", or eight or more digits of its hash.
        storage: the store's folder or URL, as in `cutline.start`.
        name: the system's name.
        only: these participants alone.
        main: the module that stands for the script whose classes the checkpoint names (``__main__``).
        trust: also if the key of the store is not here; whoever wrote it can make any code run here.
        allow: dotted names of packages, modules, classes: nothing else may the states name.
        lazy_maps: a large `Map` reads an entry when it is asked for it, not before. What it has not read yet
            stays readable for this process, whatever becomes of the checkpoint.

    Raises:
        CheckpointNotFound: there is no such point; the message lists what there is.
        UnknownParticipant: a name in `only` that nobody has.
        ClassMissing, ClassNotAllowed, CannotRestore: this program lacks what the checkpoint names.
        ForeignStore: the key of the store is not here.
        NotAStore, NewerFormat, Corrupt: it cannot be read.
    """
    chosen = None if only is None else _names(only)
    allowed = check_allow(allow)
    with open_store(storage, create=False) as store:
        row, manifest = point_in(store, name, point, trust=trust)
        everybody = list(manifest.images)
        if chosen is not None:
            refuse_unknown(row, chosen, everybody)
        opener = WithClasses(str(row), main, allowed)
        names = everybody if chosen is None else chosen
        participants = read_cut(store, manifest, names, opener, left_unread if lazy_maps else None)
    return Cut(row, participants, everybody, storage, opener)


def _names(only: Iterable[str]) -> list[str]:
    if isinstance(only, str):
        raise Misuse(f"only is a list of names: write only=[{only!r}]")
    return list(only)


def point_in(store: Store, name: str, point: str | int, *, trust: bool) -> tuple[CheckpointRow, Manifest]:
    """The row and the manifest of a point whose states are about to be unpickled.

    Raises CheckpointNotFound, Corrupt; ForeignStore if nobody knows who wrote the store.
    """
    if not store.is_verified and not trust:
        raise foreign(f"the store {store.url}", store.catalog.seals.key_id, "so nothing of it is unpickled")
    row = store.catalog.find(name, str(point))
    return row, store.read_manifest(row)


def refuse_unknown(row: CheckpointRow, wanted: Iterable[str], everybody: Sequence[str]) -> None:
    """Raises UnknownParticipant for a name that is not among those of a cut; says which one may be meant."""
    for name in wanted:
        if name not in everybody:
            raise _unknown(row, name, everybody)


def _unknown(row: CheckpointRow, name: str, everybody: Sequence[str]) -> UnknownParticipant:
    known = [each for each in everybody if each != DRIVER]
    near = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"
    return UnknownParticipant(f"no participant {name!r} in {row}; {hint}", participant=name)


class Opener(Protocol):
    """How states and messages become values. ``can_save``: an image of them would name their classes."""

    can_save: bool

    def state(self, name: str, image: Image, restored: Restored | None = None) -> Any:
        """The instance of a participant's image. `restored`: as `restore` takes it."""
        ...

    def message(self, name: str) -> Callable[[Any], Any]:
        """What loads the values of messages to a participant."""
        ...


class WithClasses:
    """With the classes of this program."""

    def __init__(self, cut: str, main: types.ModuleType | None, allow: Sequence[str] | None) -> None:
        self._cut = cut
        self._classes = Classes(main)
        self.can_save = main is None
        self._allow = allow

    def state(self, name: str, image: Image, restored: Restored | None = None) -> Any:
        with allowing_only(self._allow):
            live = Absent(name, self._cut).loaders()
            regions = dict(image.regions)
            return restore(
                image.pieces,
                regions,
                participant=name,
                classes=self._classes,
                live=live,
                restored=restored,
                header=image.header,
                unread=image.unread,
            )

    def message(self, name: str) -> Callable[[Any], Any]:
        live = Absent(name, self._cut).loaders()

        def loaded(payload: Any) -> Any:
            with allowing_only(self._allow):
                return loads(payload, participant=name, live=live, classes=self._classes)

        return loaded


def read_cut(
    store: Store, manifest: Manifest, names: Iterable[str], opener: Opener, left: Left | None = None
) -> dict[str, Participant]:
    """What a cut holds of these participants. Raises Corrupt for a part that is damaged, CannotRestore.
    `left`: which pieces are read later.

    Of the others their share of the messages is read: what was on its way lies with its sender.
    """
    members = {name: Member(name, image.birth) for name, image in manifest.images.items()}
    images, sections = {}, {}
    for name, member in manifest.images.items():
        if name in names:
            images[name] = image = read_image(store.blobs, member.ref, left=left)
            sections[name] = image.sections
        else:
            sections[name] = read_sections(store.blobs, member.ref)
    tables = {members[name]: channels_of(each) for name, each in sections.items()}
    parcels = {token: parts for each in sections.values() for token, parts in parcels_of(each).items()}
    found = {}
    for name, image in images.items():
        instance = opener.state(name, image)
        codec = Codec(opener.message(name), parcels)
        found[name] = participant_of(members[name], image.header, image.sections, instance, tables, codec)
    return found
