"""`cutline.fork`: another system that begins at a checkpoint of one that goes on as if nothing had
happened."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cutline.errors import Misuse, RefusedOption
from cutline.participant.allowing import check_allow
from cutline.participant.driver import DRIVER
from cutline.participant.inherited import drop_inputs, inputs_after, log_of, put_inputs
from cutline.storage import CheckpointRow, Manifest, Store, open_store, read_image, store_home
from cutline.storage.collect import FORKED, MADE_WHOLE
from cutline.storage.fork_apart import Wish, fork_apart
from cutline.storage.forking import NewState

from .effect_rows import chosen_rule
from .loading import Cut, Forked, Opener, WithClasses, load, with_classes

__all__ = ("DROP", "REPLAY", "fork")

REPLAY, DROP = "replay", "drop"


def fork(
    point: str | int = "newest",
    storage: str | os.PathLike[str] = "./checkpoints",
    *,
    name: str = "default",
    to: str | None = None,
    effects: str = "block",
    inputs: str = DROP,
    edit: Callable[[Cut], None] | None = None,
    label: str | None = None,
    allow: Iterable[str] | None = None,
) -> Forked:
    """Makes a system of its own that begins at a checkpoint; its origin goes on untouched, running or not.

    Nothing of the fork runs yet: ``cutline.start(storage, name=forked.system)`` starts it, beside its origin
    if that runs. All of the checkpoint is copied, so it takes the room of a savepoint. The two share nothing
    that Cutline hands out: lineages, epochs, checkpoints' hashes, keys of effects, seeds.

    Args:
        point: "newest", a number, a label, "lineage/number", or eight or more digits of its hash.
        storage: the store's folder or URL, as in `cutline.start`. The fork is in the same store.
        name: the system that the checkpoint is of.
        to: the fork's name; without it, one that is made up.
        effects: what becomes of what the fork asks of the world. ``"block"``: it waits until ``cutline
            effects --allow``; repeatable ones are called. ``"recorded"``: what the origin has done by now,
            and still remembers, gets the outcome that it had there, anything else raises `EffectsBlocked`.
            ``"live"``: the fork makes its own calls, with keys of its own.
        inputs: ``"replay"``: what the program of the origin has sent behind the checkpoint by now is sent to
            the fork too, when it is started; ``"drop"``: it is not.
        edit: gets the checkpoint as `cutline.load` gives it, and changes instances in it; returns nothing.
        label: of the fork's first checkpoint, which then stays until it is deleted.
        allow: as in `cutline.load`, for `edit`.

    Raises:
        Misuse: `edit` returned something, or changed nothing; the inputs are not there. What `edit` raises,
            it raises. Nothing was made then.
        RefusedOption: an option means nothing.
        DuplicateName: there is a system of that name.
        CannotCapture: a changed state cannot be saved; the message names the attribute's path.
        CheckpointNotFound: there is no such point, or retention has just taken it.
        Corrupt: a part of the checkpoint is damaged; the message names it.
        ForeignStore: the key of the store is not here.
    """
    rule = chosen_rule(effects)
    if inputs not in (REPLAY, DROP):
        raise RefusedOption(f'inputs is "replay" or "drop", not {inputs!r}')
    if edit is not None and not callable(edit):
        raise Misuse(f"edit is a function that gets the checkpoint and changes it, not {edit!r:.80}")
    with open_store(storage, create=False) as store:
        key = store.catalog.seals.need_key()
        row = store.catalog.find(name, str(point))
        manifest = store.read_manifest(row)
        cut = None if edit is None else _edited(row, storage, edit, allow)
        states: Mapping[str, NewState] = {} if cut is None else cut.changes(store, manifest)
        if cut is not None and not states:
            raise Misuse(f"edit has changed nothing of {row}; to fork it as it is, leave edit= out")
        home, ingress = Path(store_home(os.fspath(storage))), key.derived("ingress")
        given = _inputs(store, home, row, manifest, ingress) if inputs == REPLAY else []
        wish = Wish(
            to if to is not None else f"{name}-fork-{os.urandom(3).hex()}",
            rule,
            label,
            states,
            with_classes(manifest.channels, states),
            {"effects": rule, "inputs": inputs, "replayed": len(given), "edited": sorted(states)},
        )
        if not given:
            made = fork_apart(store, row, wish)
        else:
            made = _with_inputs(store, row, wish, home, given, ingress)
    return Forked(f"{made.lineage}/{made.checkpoint}", tuple(states), made.system)


def _with_inputs(
    store: Store, row: CheckpointRow, wish: Wish, home: Path, given: list[list[Any]], key: bytes
) -> CheckpointRow:
    put: list[str] = []

    def before(lineage: str) -> None:
        put.append(lineage)
        put_inputs(home, lineage, given, key)

    try:
        return fork_apart(store, row, wish, before)
    except BaseException:
        for lineage in put:
            drop_inputs(home, lineage)
        raise


def _edited(
    row: CheckpointRow,
    storage: str | os.PathLike[str],
    edit: Callable[[Cut], None],
    allow: Iterable[str] | None,
) -> Cut:
    cut = load(f"{row.lineage}/{row.checkpoint}", storage, name=row.system, allow=allow)
    changed: Callable[[Cut], object] = edit
    said = changed(cut)
    if said is not None:
        raise Misuse(
            f"edit is to change the instances that it is given and to return nothing, not {said!r:.80}"
        )
    return cut


def _inputs(store: Store, home: Path, row: CheckpointRow, manifest: Manifest, key: bytes) -> list[list[Any]]:
    """What the program has sent behind a checkpoint."""
    if row.lineage.startswith(FORKED):
        # Nobody has run it: what it was given itself is all that there is.
        there = log_of(home, row.lineage).exists()
        return inputs_after(home, row.lineage, 0, key) if there else []
    image = read_image(store.blobs, manifest.images[DRIVER].ref)
    opener: Opener = WithClasses(str(row), None, check_allow(None))
    ran = str(image.header["lineage"])
    # A fork that has not taken a message since it began has its origin's position yet, and a log of its own.
    own = ran == row.lineage or row.lineage.startswith(MADE_WHOLE)
    position = opener.state(DRIVER, image).log_index if own else 0
    return inputs_after(home, ran if own else row.lineage, position, key)
