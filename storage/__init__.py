"""Durable bytes: blobs, images, cuts, and the catalog that says which cuts there are.

Knows nothing of actors. Read in this order: `blobs` and `directory` (bytes by key), `codec`, `pack` and
`image` (a participant's bytes), `manifest` (a cut), `catalog`, `tables` and `sqlite` (the fates), `store`
(the order of a commit), `location` and `opening` (where a URL leads), `retention` and `collect` (what goes),
`verify`. `objects` and `postgresql` are what is needed beyond one machine. The formats are in docs/format.md.
"""

from __future__ import annotations

from .blobs import BlobStore, manifest_key, pack_key
from .catalog import Catalog, CheckpointRow, Fate, Lease, LineageRow
from .collect import Swept
from .directory import DirectoryBlobs
from .image import (
    Image,
    ImageRef,
    Piece,
    Region,
    check_image,
    read_header,
    read_image,
    read_sections,
    write_image,
)
from .location import Location, locate, store_home, store_path
from .manifest import Manifest, MemberImage
from .memory import MemoryBlobs
from .opening import open_blobs, open_store
from .owners import Owner
from .sqlite import SqliteCatalog
from .store import Store, memory_store
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
    "Location",
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
    "locate",
    "manifest_key",
    "memory_store",
    "open_blobs",
    "open_store",
    "pack_key",
    "read_header",
    "read_image",
    "read_sections",
    "store_home",
    "store_path",
    "write_image",
)
