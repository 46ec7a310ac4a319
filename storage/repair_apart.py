"""`cutline rebuild-catalog` where the catalog is a schema of its own: made again if it is gone or blank.

A schema that knows a system is never emptied here: what a database holds is its owner's to drop.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from cutline.errors import BlobNotFound, Corrupt, Misuse, RefusedOption

from .blobs import BlobStore
from .keys import find_key, made_key
from .location import Location, need_catalog
from .opening import MARKER, STORE_FORMAT, blob_places, postgres_catalog, read_marker, write_marker
from .rebuild import Gathered, gather, refill

__all__ = ("rebuild_apart",)


def rebuild_apart(location: Location, *, trust: bool = False) -> Gathered:
    """Makes the schema that a store's URL names, and fills it. An attempt that died is run again: systems
    that are in already stay as they are.

    Raises:
        Misuse: the schema knows all that there is to put in.
        RefusedOption: the schema is another store's.
        Corrupt: none of the blobs tells of a committed cut.
    """
    top, blobs = blob_places(location)
    url = need_catalog(location)
    with contextlib.closing(postgres_catalog(url)) as catalog:
        missing = catalog.is_missing()
        if not missing and catalog.place() != location.place:
            raise RefusedOption(f"{url} is the catalog of {catalog.place() or 'another store'}: name another")
        found = gather(blobs, trust=trust)
        if not found.cuts:
            raise Corrupt(
                f"nothing in {location.place} tells of a committed cut, so there is nothing to make a catalog"
                f" from: {'; '.join(found.left_out) or 'there are no commit records'}",
                path=location.place,
            )
        for system in [] if missing else catalog.systems():
            if found.systems.pop(system, None) is not None:
                found.left_out.append(f"system {system!r} was in the catalog already")
        if not found.systems:
            raise Misuse(
                f"{url} knows every system of {location.place}: there is nothing to make again. If it is"
                " damaged, drop the schema first",
                path=location.place,
            )
        marker = _marker(location, top, found)
        store_id = marker["store"] if marker else os.urandom(16).hex()
        catalog.create(store_id, location.place, found.keys[-1] if found.keys else made_key())
        if catalog.store_id() != store_id and marker:
            raise RefusedOption(f"{url} is the catalog of another store than {location.place}: name another")
        if catalog.seals.key is None:
            catalog.use_key(find_key(catalog.meta()["key"]))
        refill(catalog, found)
        write_marker(top, {"format": STORE_FORMAT, "store": catalog.store_id(), "catalog": "postgresql"})
    return found


def _marker(location: Location, top: BlobStore, found: Gathered) -> dict[str, Any] | None:
    """The store's marker; None for one that is lost, and is written anew."""
    place = location.place
    try:
        marker = read_marker(place, top.read(MARKER))
    except (BlobNotFound, Corrupt):
        found.left_out.append(f"{MARKER} was missing or damaged; it was written anew")
        top.delete(MARKER)
        return None
    if "catalog" not in marker:
        raise RefusedOption(f"the store at {place} has its catalog in its folder: leave out catalog=")
    return marker
