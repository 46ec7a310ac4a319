"""Whose a store is, asked once by the program that starts a system: its coordinators are handed the key.

They may run on other machines, where the user's folder is another one. The key goes the same way as the
secret of the run: by the coordinator's standard input, or as an argument of its actor. Participants get
references to images from a coordinator that has verified them, over authenticated links, and need no key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cutline.errors import Corrupt, Misuse, NotAuthentic
from cutline.participant.ingress import IngressLog
from cutline.participant.ingress_segment import logs_in
from cutline.participant.step_files import reseal as reseal_steps
from cutline.storage import Store, open_store, store_home
from cutline.storage.authentic import StoreKey
from cutline.storage.keys import (
    ENVIRONMENT,
    ENVIRONMENT_FILE,
    made_key,
    note_renewal,
    retire_former,
    with_former,
)

__all__ = ("key_of", "opened_with_key", "store_key", "take_over")


def store_key(url: str, *, trust: bool) -> str:
    """The key of the store at a URL, which is made if it is not there, as text.

    Raises ForeignStore if the key is not here; with ``trust`` the store gets another one.
    """
    with open_store(url, create=True) as store:
        if trust and not store.is_verified:
            take_over(store, url, trust=True)
        return store.catalog.seals.need_key().text


def take_over(store: Store, url: str, *, trust: bool = False) -> StoreKey:
    """Gives a store a new key, and all that is in it and beside it: it counts as authentic from now on.

    The old key, if it is here, must vouch for all of it, and is set aside. Damaged logs stay so.

    ``trust``: logs count whoever wrote them, and so does all else if the old key is not here. One that was
    interrupted is run again.

    Raises:
        StoreInUse: a system runs in it.
        NotAuthentic: somebody without the old key wrote a part of it; the store is as before.
        Corrupt: the old key is here, and a row of the catalog is damaged: have it made again first.
        Misuse: the environment gives the key that the store has.
    """
    key, old = made_key(), store.catalog.seals.key
    if old == key:
        raise Misuse(
            f"{store.url} has the key that the environment gives, {key.id}: give a new one in {ENVIRONMENT},"
            f" and this one in a file that {ENVIRONMENT_FILE} names, for as long as `cutline key renew` runs"
        )
    former = with_former(old) if old is not None else []
    logs = logs_in(store_home(url) / "ingress")
    derived = [each.derived("ingress") for each in former]
    steps = [each.derived("steps") for each in former]
    for path in logs:
        _reseal(path, key.derived("ingress"), derived, trust, only_check=True)
    reseal_steps(store_home(url), key.derived("steps"), steps, trust=trust, only_check=True)
    if old is not None:
        note_renewal(key, old)
    store.take_over(key)
    for path in logs:
        _reseal(path, key.derived("ingress"), derived, trust)
    reseal_steps(store_home(url), key.derived("steps"), steps, trust=trust)
    retire_former(key, former)
    return key


def _reseal(path: Path, key: bytes, former: Sequence[bytes], trust: bool, only_check: bool = False) -> None:
    try:
        log = IngressLog(path, key, former=former, trust=trust)
    except NotAuthentic:
        raise
    except Corrupt:
        # It stays damaged, and says so to whoever opens it.
        return
    try:
        if not only_check:
            log.reseal()
    finally:
        log.close()


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
