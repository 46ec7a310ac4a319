"""Who wrote what is stored: the key of a store, and what it vouches for.

A digest finds damage; whoever can write the store can also make digests. So each row of the catalog, each
commit record, each export and each record of an ingress log carries a MAC too, by a key that lies outside of
the store (`keys`). The row of a cut names its manifest by digest, the manifest each image, an image its
chain: a row that verifies vouches for every byte that a restore unpickles. Participants get such a reference
over their authenticated links and need no key.

MACs are keyed BLAKE3 over digests; each purpose has a key of its own, derived from the store's.
"""

from __future__ import annotations

import hmac
import os
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from cutline.errors import Corrupt, ForeignStore, Misuse, NotAuthentic

from .codec import DIGEST_SIZE, canonical, digest_of

__all__ = ("MAC_SIZE", "SEAL_SIZE", "Seals", "StoreKey", "damaged", "foreign", "forged")

KEY_SIZE = 32
MAC_SIZE = 32
SEAL_SIZE = DIGEST_SIZE + MAC_SIZE
_CONTEXT = "cutline store key 1: "


@dataclass(frozen=True)
class StoreKey:
    """32 bytes that are nowhere in the store. Never printed."""

    secret: bytes = field(repr=False)

    @classmethod
    def new(cls) -> StoreKey:
        return cls(os.urandom(KEY_SIZE))

    @classmethod
    def from_text(cls, text: str, where: str) -> StoreKey:
        """From its 64 hexadecimal digits. Raises Misuse, which says where they were looked for."""
        try:
            secret = bytes.fromhex(text.strip())
        except ValueError:
            secret = b""
        if len(secret) != KEY_SIZE:
            raise Misuse(f"{where} holds no key of a store: that is {2 * KEY_SIZE} hexadecimal digits")
        return cls(secret)

    @property
    def text(self) -> str:
        """64 hexadecimal digits: the secret itself."""
        return self.secret.hex()

    @property
    def id(self) -> str:
        """32 hexadecimal digits that say which key it is, and nothing about it."""
        return self.derived("id")[:16].hex()

    def derived(self, purpose: str) -> bytes:
        """The key for one purpose alone."""
        return blake3(self.secret, derive_key_context=f"{_CONTEXT}{purpose}").digest()

    def mac(self, purpose: str, content: bytes) -> bytes:
        return blake3(content, key=self.derived(purpose)).digest()

    def vouches(self, purpose: str, content: bytes, mac: bytes) -> bool:
        return hmac.compare_digest(self.mac(purpose, content), mac)


class Seals:
    """The seals of one catalog's rows: a digest, which anybody can check, and a MAC over it.

    Without ``key`` rows are read with the digest checked alone, and none can be written. ``key_id``: which
    key the catalog says it has.
    """

    def __init__(self, key: StoreKey | None = None, store: str = "", key_id: str = "") -> None:
        self.key = key
        self.store = store
        self.key_id = key.id if key else key_id
        self._keys: dict[str, bytes] = {}

    def use(self, key: StoreKey | None, store: str, key_id: str) -> None:
        """From now on, for this store. Raises ForeignStore if that is not its key."""
        if key is not None and key.id != key_id:
            raise ForeignStore(f"key {key.id} is not that of this store, {key_id}", key_id=key_id)
        self.key, self.store, self.key_id = key, store, key_id
        self._keys = {}

    def need_key(self) -> StoreKey:
        """Raises ForeignStore where it is not here: nothing can be written that would verify."""
        if self.key is None:
            raise foreign("the store", self.key_id, "so nothing can be written into it")
        return self.key

    def seal(self, table: str, *values: Any) -> bytes:
        """For a row with those values. Raises ForeignStore without the key."""
        digest = digest_of(canonical(list(values)))
        self.need_key()
        return digest + self._mac(table, digest)

    def check(self, found: bytes, what: str, table: str, *values: Any, **facts: Any) -> None:
        """Raises Corrupt for a row that is not what was written, NotAuthentic for one that somebody has
        written who does not have the key."""
        digest = digest_of(canonical(list(values)))
        if not isinstance(found, bytes) or len(found) != SEAL_SIZE or found[:DIGEST_SIZE] != digest:
            raise damaged(what, **facts)
        if self.key is not None and not hmac.compare_digest(self._mac(table, digest), found[DIGEST_SIZE:]):
            raise forged(
                f"the catalog's row of {what}",
                "; `cutline rebuild-catalog --force` makes the catalog again from records that verify",
                **{"key": "catalog", **facts},
            )

    def _mac(self, table: str, digest: bytes) -> bytes:
        assert self.key is not None
        key = self._keys.get(table)
        if key is None:
            key = self._keys[table] = self.key.derived(f"row {table} of {self.store}")
        return blake3(digest, key=key).digest()


def damaged(what: str, **facts: Any) -> Corrupt:
    """The error for a row whose digest is wrong."""
    return Corrupt(
        f"the catalog's row of {what} is damaged: it is not what was written; `cutline verify` lists"
        " what else is",
        key="catalog",
        what=f"row of {what}",
        **facts,
    )


def forged(what: str, advice: str = "", **facts: Any) -> NotAuthentic:
    """The error for what is whole, but not by the key."""
    return NotAuthentic(
        f"{what} does not verify with the store's key: somebody wrote it, or put it there, who does not have"
        f" the key. Nothing of it was used{advice}",
        what=what,
        **facts,
    )


def foreign(what: str, key_id: str, consequence: str) -> ForeignStore:
    """The error where the key is not here."""
    return ForeignStore(
        f"the key of {what} ({key_id or 'none'}) is not here, {consequence}. Bring it: `cutline key export`"
        " where it is, `cutline key add FILE` here, or CUTLINE_STORE_KEY. If you trust whoever wrote it, with"
        " all the code that it can make run: trust=True, on the command line --trust",
        key_id=key_id,
    )
