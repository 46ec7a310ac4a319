"""Durable bytes: blobs, images, cuts, and the catalog that says which cuts there are.

Knows nothing of actors. Read in this order: `blobs` and `directory` (bytes by key), `codec`, `pack` and
`image` (a participant's bytes), `manifest` (a cut), `catalog` and `sqlite` (the fates), `store` (the order
of a commit), `retention` and `collect` (what goes), `verify`. The formats are in docs/format.md.
"""

from __future__ import annotations

from .blobs import BlobStore, manifest_key, pack_key
from .catalog import Catalog, CheckpointRow, Fate, Lease, LineageRow
from .collect import Swept
from .directory import DirectoryBlobs
from .image import Image, ImageRef, Piece, Region, check_image, read_header, read_image, write_image
from .manifest import Manifest, MemberImage
from .memory import MemoryBlobs
from .owners import Owner
from .sqlite import SqliteCatalog
from .store import Store, memory_store, open_blobs, open_store, store_path
from .verify import Report

__all__ = (
    "BlobStore",
    "Catalog",
    "CheckpointRow",
    "DirectoryBlobs",
    "Fate",
    "Image",
    "ImageRef",
    "Lease",
    "LineageRow",
    "Manifest",
    "MemberImage",
    "MemoryBlobs",
    "Owner",
    "Piece",
    "Region",
    "Report",
    "SqliteCatalog",
    "Store",
    "Swept",
    "check_image",
    "manifest_key",
    "memory_store",
    "open_blobs",
    "open_store",
    "pack_key",
    "read_header",
    "read_image",
    "store_path",
    "write_image",
)
