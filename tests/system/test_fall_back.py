"""A newest checkpoint that is damaged: named, and passed over for the one before; all counted once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import cutline
from cutline.errors import BelowHorizon, StoreInUse
from cutline.storage import CheckpointRow, Owner, open_store
from cutline.storage.export import export_cut
from cutline.storage.importing import claim_source, import_cut, open_export
from cutline.storage.retention import Policy
from cutline.storage.tending import gc
from tests.system.actors import Pourer, Taker
from tests.system.living import again, comes_to

POURED = 40


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rounds, each poured from one participant to another, and a checkpoint in each."""
    folder = tmp_path_factory.mktemp("fall back") / "store"
    with cutline.start(folder, interval=None, quiet=True) as system:
        taker = system.spawn("taker", Taker)
        pourer = system.spawn("pourer", Pourer, taker)
        for number in range(3):
            assert pourer.pour.remote(POURED - 5).result() == POURED * (number + 1) - 5
            pourer.pour.tell(5)
            system.checkpoint()
    return folder


def rows(folder: Path) -> list[CheckpointRow]:
    with open_store(folder, create=False) as store:
        return store.catalog.checkpoints("default")


def pack_of(folder: Path, row: CheckpointRow) -> Path:
    with open_store(folder, create=False) as store:
        return folder / "blobs" / store.read_manifest(row).images["taker"].ref.key


def flip(path: Path) -> None:
    """In the content, which only reading everything finds."""
    content = bytearray(path.read_bytes())
    content[20] ^= 4
    path.write_bytes(content)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("harms", [[flip], [shorten, Path.unlink]], ids=["one flipped", "two cut and gone"])
def test_the_newest_are_damaged(made: Path, tmp_path: Path, harms: list[Callable[[Path], None]]) -> None:
    folder = tmp_path / "store"
    shutil.copytree(made, folder)
    before = rows(folder)
    damaged = [pack_of(folder, row) for row in before[-len(harms) :]]
    for harm, path in zip(harms, damaged, strict=True):
        harm(path)
    with cutline.start(folder, interval=None, quiet=True) as system:
        taker, pourer = system.spawn("taker", Taker), system.spawn("pourer", Pourer, None)

        def named() -> list[bool]:
            told = " ".join(notice["text"] for notice in list(system.notices) if notice["what"] == "damaged")
            return [path.name in told for path in damaged]

        comes_to(named, [True] * len(damaged), "the damage to be told of")
        # What came after that checkpoint is in the log, and counts once.
        comes_to(lambda: again(lambda: pourer.poured.remote().result()), 3 * POURED, "all of the input")
        comes_to(lambda: again(lambda: taker.taken.remote().result()), 3 * POURED, "all that was poured")
        assert again(lambda: taker.in_order.remote().result())
        assert again(system.checkpoint) > before[-1].checkpoint
    after = rows(folder)
    assert [row.checkpoint for row in after][: len(before)] == [row.checkpoint for row in before]
    with open_store(folder, create=False) as store:
        parent = store.read_manifest(after[len(before)]).parent_checkpoint
    assert parent == before[-1 - len(harms)].place


def test_nobody_goes_below_the_horizon_by_himself(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(made, folder)
    newest, before = rows(folder)[-1], rows(folder)[-2]
    with open_store(folder, create=False) as store:
        lease = store.catalog.acquire_lease("default", Owner.here("test"), 10.0, 0.0)
        store.catalog.raise_horizon(lease, newest.lineage, newest.checkpoint)
        store.catalog.release_lease(lease)
    shorten(pack_of(folder, newest))
    with pytest.raises(
        BelowHorizon, match=rf"checkpoint {before.checkpoint} of.*from checkpoint {newest.checkpoint} of"
    ) as caught:
        cutline.start(folder, interval=None, quiet=True)
    assert pack_of(folder, newest).name in str(caught.value)


def test_a_copy_goes_on_elsewhere_as_a_fork(made: Path, tmp_path: Path) -> None:
    """Exported, imported under another name, opened: all that the checkpoint held, in its own lineage."""
    shutil.copytree(made, tmp_path / "source")
    newest = rows(made)[-1]
    with open_store(tmp_path / "source", create=False) as source:
        export_cut(source, newest, tmp_path / "carried")
        export = open_export(tmp_path / "carried")
        with open_store(tmp_path / "there", create=True) as there:
            copy = import_cut(there, export, name="copy")
        claim_source(source, export, copy.lineage)
    with cutline.start(tmp_path / "there", name="copy", interval=None, quiet=True) as system:
        assert system.resumed == copy.checkpoint and system.lineage not in (copy.lineage, newest.lineage)
        taker, pourer = system.spawn("taker", Taker), system.spawn("pourer", Pourer, None)
        assert pourer.pour.remote(7).result() == 3 * POURED + 7
        comes_to(lambda: taker.taken.remote().result(), 3 * POURED + 7, "what is poured in the copy")
        assert taker.in_order.remote().result()
        assert copy.checkpoint < system.checkpoint() < system.checkpoint()
        # Collected from outside, under the lease of the coordinator, which goes on.
        with open_store(tmp_path / "there", create=False) as there:
            assert gc(there, "copy", Policy(1), time.time())[1].given_up
        kept = system.checkpoint()
    with open_store(tmp_path / "there", create=False) as there:
        assert [line.origin for line in there.catalog.lineages("copy")] == [None, copy.place]
        assert there.verify("copy").faults == []
        assert there.catalog.find("copy", "newest").checkpoint >= kept
    # The source was told, and does not go on by itself.
    with pytest.raises(StoreInUse, match=f"goes on in a copy.*{export.doc['export']}"):
        cutline.start(tmp_path / "source", interval=None, quiet=True)
