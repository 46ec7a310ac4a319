"""Makes a small store of the present format, to be kept and read for ever.

    python -m tests.storage.stores.make FOLDER

Run once for each version of the format; the folder's key is put beside it. What its cuts hold is `CUTS`.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from cutline.storage import Manifest, MemberImage, Piece, Region, open_store, pack_key, write_image
from cutline.storage.authentic import StoreKey
from cutline.storage.codec import digest_of
from cutline.storage.export import export_cut
from cutline.storage.keys import ENVIRONMENT
from tests.storage.cast import Scene

__all__ = ("CUTS", "SYSTEM", "make", "memory_of")

SYSTEM = "Märkte / 1"
PARTICIPANT = "ä.b"
BIG = b"in the queue " * 200
# By checkpoint: what the piece "count" holds; the pages of its memory that were written for it.
CUTS = {1: (b"0", range(16)), **{n: (b"%d" % (n - 1), range(n, n + 1)) for n in range(2, 7)}}
# So that some of the deltas are folded.
_MOST = 2
_PAGE = 4096


def memory_of(checkpoint: int) -> bytes:
    """The region of a cut."""
    pages = [bytes(_PAGE)] * 16
    for number in range(1, checkpoint + 1):
        for page in CUTS[number][1]:
            pages[page] = random.Random(f"{number} {page}").randbytes(_PAGE // 8) * 8
    return b"".join(pages)


def make(folder: Path) -> None:
    key = StoreKey.new()
    os.environ[ENVIRONMENT] = key.text
    with open_store(folder, create=True) as store:
        scene = Scene.new(store, SYSTEM, now=1.0)
        ref = None
        for number, (count, pages) in CUTS.items():
            checkpoint = scene.begin(ref is None, "first" if ref is None else None, [PARTICIPANT])
            memory = memory_of(number)
            ref = write_image(
                store.blobs,
                pack_key(SYSTEM, scene.lineage, 1, checkpoint, PARTICIPANT, 1),
                header={"class": "m:C"},
                sections={"small": b"s", "big": BIG},
                pieces=[
                    Piece("same", digest_of(b"same"), None if ref else b"same"),
                    Piece("count", digest_of(count), count),
                ],
                regions=[
                    Region(
                        4,
                        len(memory),
                        tuple((page * _PAGE, memory[page * _PAGE :][:_PAGE]) for page in pages),
                    )
                ],
                parent=ref,
                most=_MOST,
            )
            images = {PARTICIPANT: MemberImage(1, ref)}
            label = "first" if number == 1 else None
            manifest = Manifest(
                SYSTEM, scene.lineage, checkpoint, 1, ref.kind, label, None, 1.5, images, {"t": [number]}
            )
            row = store.commit_cut(scene.lease, manifest, {"written_bytes": ref.size}, 2.0)
        store.catalog.raise_horizon(scene.lease, scene.lineage, 2)
        store.catalog.release_lease(scene.lease)
        export_cut(store, row, folder.with_name(f"{folder.name}.export"))
    folder.with_name(f"{folder.name}.key").write_text(f"{key.text}\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
