"""Effects whose checkpoints are damaged afterwards, or are carried elsewhere: nothing is called twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import cutline
from cutline.coordinator.cli import app
from cutline.errors import BelowHorizon
from cutline.storage import open_store
from tests.system import outside
from tests.system.living import again, comes_to, until
from tests.system.outside import Payer


def started(store: Path, **options: Any) -> cutline.System:
    return cutline.start(store, interval=None, quiet=True, **options)


def paid(world: Path) -> list[str]:
    return [line for line in outside.lines(world) if line.startswith("pay ")]


def blocked(system: cutline.System) -> None:
    """Comes back when the system has said so."""
    until(lambda: [each for each in list(system.notices) if each["what"] == "effects_blocked"], "a notice")


def gets(payer: Any, answers: list[int]) -> None:
    """Comes back when it has had these."""
    comes_to(lambda: again(lambda: payer.all_got.remote().result()), answers, "what it got")


def damage(folder: Path, checkpoint: int) -> None:
    """So that it is no cut any more."""
    with open_store(folder, create=False) as store:
        manifest = store.read_manifest(store.catalog.find("default", str(checkpoint)))
    for image in manifest.images.values():
        (folder / "blobs" / image.ref.key).write_bytes(b"damaged")


def test_the_newest_checkpoint_is_damaged_after_an_effect(tmp_path: Path, world: Path) -> None:
    folder = tmp_path / "store"
    with started(folder) as system:
        payer = system.spawn("payer", Payer)
        before = system.checkpoint()
        payer.then.tell(1)
        gets(payer, [1])
        system.stop()
    with open_store(folder, create=False) as store:
        later = [row.checkpoint for row in store.catalog.checkpoints("default") if row.checkpoint > before]
    # The first of them has the request, the last one its answer too.
    assert len(later) >= 2
    for checkpoint in later[1:]:
        damage(folder, checkpoint)
    with started(folder) as system:
        gets(system.spawn("payer", Payer), [1])
        system.stop(checkpoint=False)
    assert len(paid(world)) == 1
    with open_store(folder, create=False) as store:
        there = [row.checkpoint for row in store.catalog.checkpoints("default") if row.checkpoint > before]
    for checkpoint in set(there) - set(later[1:]):
        damage(folder, checkpoint)
    # Only the state from before the call is whole: nobody goes back to it by himself.
    with pytest.raises(BelowHorizon):
        started(folder)
    assert len(paid(world)) == 1


def test_two_copies_of_what_waits_for_an_effect(tmp_path: Path, world: Path) -> None:
    def run(*arguments: object) -> None:
        done = CliRunner().invoke(app, [str(each) for each in arguments])
        assert done.exit_code == 0, done.output

    origin, packed = tmp_path / "origin", tmp_path / "packed"
    with started(origin, effects="block") as system:
        system.spawn("payer", Payer).then.tell(1)
        until(
            lambda: [each for each in list(system.notices) if each["what"] == "effects_blocked"], "a notice"
        )
        system.savepoint("asked")
    run("export", "asked", packed, "-s", origin)
    copies = [tmp_path / "one", tmp_path / "other"]
    for copy in copies:
        run("import", packed, "-s", copy)
        # A copy owns nothing: what it asks of the world waits for a word.
        with started(copy) as system:
            system.spawn("payer", Payer)
            blocked(system)
    assert paid(world) == []
    run("effects", "-s", copies[1], "--allow")
    for copy, wanted in zip(copies, ([], [1]), strict=True):
        with started(copy) as system:
            gets(system.spawn("payer", Payer), wanted)
    assert len(paid(world)) == 1
