"""docs/format.md, kept honest: packs, manifests and records read without our code."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
from pathlib import Path
from typing import Any

import lz4.block
import msgpack
from blake3 import blake3

from cutline.storage import Manifest, MemberImage, Piece, Region, open_store, pack_key, write_image
from cutline.storage.codec import digest_of
from cutline.storage.keys import key_path
from tests.storage.cast import Scene


def derived(key: bytes, purpose: str) -> bytes:
    return blake3(key, derive_key_context=f"cutline store key 1: {purpose}").digest()


def expand(codec: int, stored: bytes, size: int) -> bytes:
    raw: bytes = stored if codec == 0 else lz4.block.decompress(stored, uncompressed_size=size)
    assert codec in (0, 1) and len(raw) == size
    return raw


def read_pack(blob: bytes) -> tuple[dict[str, Any], bytes]:
    """(document, stream) by the letter of docs/format.md."""
    assert struct.unpack("<8sII", blob[:16]) == (b"\x89CUTLINE", 1, 0)
    offset, stored, raw, codec, zero, digest, end = struct.unpack("<QQQB7s32s8s", blob[-72:])
    assert (zero, end, offset + stored + 72) == (bytes(7), b"ENILTUC\x89", len(blob))
    packed = expand(codec, blob[offset : offset + stored], raw)
    assert blake3(packed).digest() == digest
    document = msgpack.unpackb(packed)
    length, extent, table = document["stream"]
    stream, at = b"", 16
    for size, codec, digest in table:
        assert blake3(blob[at : at + size]).digest() == digest
        stream += expand(codec, blob[at : at + size], min(extent, length - len(stream)))
        at += size
    assert (at, len(stream)) == (offset, length)
    return document, stream


def runs_of(row: list[Any]) -> list[tuple[int, int, int]]:
    position, unit, gap_width, gaps, length_width, lengths = row
    offset, found = 0, []
    for n in range(len(gaps) // gap_width):
        offset += unit * int.from_bytes(gaps[n * gap_width : (n + 1) * gap_width], "little")
        length = unit * int.from_bytes(lengths[n * length_width : (n + 1) * length_width], "little")
        found.append((position, offset, length))
        position, offset = position + length, offset + length
    return found


def read_chain(folder: Path, image: dict[str, Any]) -> dict[str, Any]:
    """The state of an image, the plain way: the whole chain, oldest first."""
    regions: dict[int, bytearray] = {}
    contents: dict[tuple[str, bytes], bytes] = {}
    document: dict[str, Any] = {}
    for key in image["chain"]:
        document, stream = read_pack((folder / key).read_bytes())
        for name, digest, where in document["pieces"]:
            if where is not None:
                contents[name, digest] = stream[where[0] : where[0] + where[1]]
        for number, size, runs in document["regions"]:
            if len(regions.get(number, b"?" * (size + 1))) != size:
                regions[number] = bytearray(size)
            for position, offset, length in runs_of(runs) if runs else ():
                regions[number][offset : offset + length] = stream[position : position + length]
    sections = {
        name: body if isinstance(body, bytes) else stream[body[0] : body[0] + body[1]]
        for name, body in document["sections"].items()
    }
    numbers = [number for number, _, _ in document["regions"]]
    return {
        "header": document["header"],
        "sections": sections,
        "pieces": [(name, contents[name, digest]) for name, digest, _ in document["pieces"]],
        "regions": {number: bytes(regions[number]) for number in numbers},
    }


def test_a_store_is_read_without_our_code(store_folder: Path) -> None:
    store = open_store(store_folder, create=True)
    scene = Scene.new(store)
    region = bytearray(os.urandom(3_000_000))
    big = b"in the queue " * 500
    ref = None
    for number in range(3):
        checkpoint = scene.begin(number == 0, None, ["p"])
        runs = (
            [(0, bytes(region))] if number == 0 else [(8192 * number, b"page" * 1024), (9_000 * 100, b"xy")]
        )
        for offset, run in runs:
            region[offset : offset + len(run)] = run
        body = b"%d" % number
        pieces = [
            Piece("same", digest_of(b"same"), None if ref else b"same"),
            Piece("n", digest_of(body), body),
        ]
        ref = write_image(
            store.blobs,
            pack_key(scene.lease.system, scene.lineage, 1, checkpoint, "p", 1),
            header={"class": "m:C"},
            sections={"small": b"s", "big": big},
            pieces=pieces,
            regions=[Region(4, len(region), tuple(runs))],
            parent=ref,
        )
        manifest = Manifest(
            scene.lease.system, scene.lineage, checkpoint, 1, ref.kind, None, None, 1.5,
            {"p": MemberImage(1, ref)}, {"t": [1]},
        )  # fmt: skip
        row = store.commit_cut(scene.lease, manifest, {}, 2.0)
    store.close()

    marker = json.loads((store_folder / "cutline.json").read_text())
    digest = marker.pop("digest")
    assert blake3(msgpack.packb(dict(sorted(marker.items())))).hexdigest() == digest
    database = sqlite3.connect(store_folder / "catalog.sqlite")
    meta = dict(database.execute("SELECT key, value FROM meta"))
    assert meta.keys() == {"format", "store", "key", "generation"} and meta["format"] == "1"
    assert meta["store"] == marker["store"]
    key = bytes.fromhex(key_path(meta["key"]).read_text())
    assert derived(key, "id").hex()[:32] == meta["key"] and len(key) == 32
    columns = database.execute(
        "SELECT lineage, checkpoint, label, fate, condemned, doc, seal FROM checkpoints WHERE checkpoint = 3"
    ).fetchone()
    database.close()
    digest = blake3(msgpack.packb(list(columns[:-1]))).digest()
    table_key = derived(key, f"row checkpoints of {meta['store']}")
    assert columns[-1] == digest + blake3(digest, key=table_key).digest()
    doc = columns[5]
    cut = msgpack.unpackb(expand(doc[0], doc[5:], int.from_bytes(doc[1:5], "little")))
    blobs = store_folder / "blobs"
    packed = (blobs / cut["manifest_key"]).read_bytes()
    assert blake3(packed).digest() == cut["manifest_digest"] == row.manifest_digest
    found = msgpack.unpackb(packed)
    assert (found["format"], found["checkpoint"], found["channels"]) == (1, 3, {"t": [1]})
    assert set(cut["blobs"]) == {*found["images"]["p"]["image"]["chain"], cut["manifest_key"]}
    record = (blobs / (cut["manifest_key"] + ".commit")).read_bytes()
    assert blake3(record[:-64]).digest() == record[-64:-32]
    assert blake3(record[-64:-32], key=derived(key, "record")).digest() == record[-32:]
    assert msgpack.unpackb(record[:-64])["manifest_digest"] == cut["manifest_digest"]

    assert read_chain(blobs, found["images"]["p"]["image"]) == {
        "header": {"class": "m:C"},
        "sections": {"small": b"s", "big": big},
        "pieces": [("same", b"same"), ("n", b"2")],
        "regions": {4: bytes(region)},
    }
