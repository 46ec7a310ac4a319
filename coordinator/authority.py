"""Whose a store is, asked once by the program that starts a system: its coordinators are handed the key.

They may run on other machines, where the user's folder is another one. The key goes the same way as the
secret of the run: by the coordinator's standard input, or as an argument of its actor. Participants get
references to images from a coordinator that has verified them, over authenticated links, and need no key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutline.participant.ingress import IngressLog
from cutline.storage import Store, open_store, store_home
from cutline.storage.authentic import StoreKey
from cutline.storage.keys import made_key

__all__ = ("key_of", "opened_with_key", "store_key", "take_over")


def store_key(url: str, *, trust: bool) -> str:
    """The key of the store at a URL, which is made if it is not there, as text.

    Raises ForeignStore if the key is not here; with ``trust`` the store gets another one.
    """
    with open_store(url, create=True) as store:
        if trust and not store.is_verified:
            take_over(store, url)
        return store.catalog.seals.need_key().text


def take_over(store: Store, url: str) -> StoreKey:
    """Gives a store a new key, and all that is in it and beside it: it counts as authentic from now on.

    One that was interrupted is run again. Raises StoreInUse while a system runs in it.
    """
    key = made_key()
    store.take_over(key)
    for path in sorted((store_home(url) / "ingress").glob("*.log")):
        log = IngressLog(path, key.derived("ingress"), trust=True)
        try:
            log.reseal()
        finally:
            log.close()
    return key


def key_of(spec: Mapping[str, Any]) -> StoreKey:
    """What a coordinator or a driver was handed."""
    return StoreKey.from_text(spec["key"], "what this process was started with")


def opened_with_key(spec: Mapping[str, Any], *, create: bool) -> Store:
    """The store of a system. Raises ForeignStore if it has another key by now."""
    store = open_store(spec["store"], create=create, key=key_of(spec))
    try:
        store.catalog.seals.need_key()
    except BaseException:
        store.close()
        raise
    return store
