"""Large arguments that travel beside their message: by reference where a store is shared, as bytes else.

A message with a large argument holds a *token* in its place; its frame, outbox, mailbox and digest chain are
those of a small message. The content, the *parcel*, is the pickle and the memory of its arrays. It lies in a
store that both ends reach (Ray's object store) and is sent ahead of its frame, on the same lane, as a
reference, so that no byte of it passes through a connection; or as bytes, where there is no store or a
reference did not lead to it.

* The sender keeps a parcel until its frame is released, the receiver from its arrival until its message is
  handled. The receiver takes hold of the content on arrival, before the frame can be acked: from then on it
  does not depend on the sender's reference.
* An image holds, as bytes, every parcel that is on its way or waits (`to_doc`). References never enter an
  image: they end with the cluster. After a restore the bytes are the parcel, and are sent or handled as such.
* Nothing is shared by two messages, so a parcel needs no count of users.

Nothing here knows Ray; `cutline.participant.ray_store` is a store.
"""

from __future__ import annotations

import re
import secrets
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgpack

from cutline.barrier import Endpoint, Member, Stamp
from cutline.errors import CutlineError

from .likeness import likeness_of

__all__ = ("MARK", "Held", "Parcel", "ParcelStore", "Parcels", "Parts", "is_parcel_packet", "tokens_in")

MARK = b"\xc1parcel\xc1"
_EXT = 7
_TOKENS = re.compile(re.escape(MARK) + b".{16}", re.DOTALL)
# A packet's kind; those of the protocol are 1, 2, 3. An array of 11, then this number.
_KIND = 64
_HEAD = bytes((0x9B, _KIND))
_REFERENCE, _BYTES = 0, 1

Parts = Sequence[Any]


class ParcelStore(Protocol):
    """Where both ends of a channel find the same content."""

    def put(self, parts: Parts) -> Any | None:
        """Keeps copies of these buffers for as long as the result lives; None if there is no room."""
        ...

    def share(self, reference: Any) -> bytes:
        """What the other end needs to find it."""
        ...

    def fetch(self, shared: bytes) -> Parts:
        """The buffers, held on to from now on.

        Raises:
            Exception: they are not to be had.
        """
        ...

    def read(self, reference: Any) -> Parts:
        """The buffers behind an own reference."""
        ...


class Held:
    """The content of a parcel on the sender's side: in the store, or as buffers after a restore."""

    __slots__ = ("reference", "parts", "__weakref__")

    def __init__(self, reference: Any, parts: Parts | None) -> None:
        self.reference = reference
        self.parts = parts


class Parcel(msgpack.ExtType):  # type: ignore[misc]
    """The token in a message's place of arguments; it holds on to the content until a runner has it."""

    held: Held

    @classmethod
    def of(cls, token: bytes, held: Held) -> Parcel:
        made: Parcel = cls(_EXT, token)
        made.held = held
        return made


class _Out:
    """A parcel on its way: to whom, and up to which message, as soon as it is in a frame."""

    __slots__ = ("held", "peer", "last", "tries")

    def __init__(self, held: Held) -> None:
        self.held = held
        self.peer: Member | None = None
        self.last = 0
        self.tries = 0


class _In(NamedTuple):
    """A parcel whose message waits; `last` is the last message of its frame, 0 if an image held it."""

    peer: Member | None
    last: int
    parts: Parts


class Parcels:
    """The parcels of one participant. `join` runs in any thread, everything else on the runner's.

    Args:
        minimum: bytes from which on arguments become parcels; 0: none does.
        limit: bytes that may be under way at once; beyond it arguments travel in their message, so that
            whoever is ahead of its receiver does not fill the store.
    """

    def __init__(self, minimum: int = 0, store: ParcelStore | None = None, limit: int = 1 << 30) -> None:
        self.minimum = minimum
        self.store = store
        self.limit = limit
        self.out: dict[bytes, _Out] = {}
        self.waiting: dict[bytes, _In] = {}
        self.fresh: dict[bytes, Held] = {}
        self.broken: weakref.WeakSet[Any] = weakref.WeakSet()
        # Whether any link ever broke so: to ask the set takes longer than all else here does for a packet.
        self.has_broken = False
        self._under_way = 0
        # A finalizer may run in the middle of `join` on the same thread.
        self._lock = threading.RLock()

    # -- making --------------------------------------------------------------------------------

    def join(self, stream: bytes, raws: Sequence[memoryview], *, compared: bool) -> Parcel | None:
        """A parcel of a pickle and its buffers; None if it is to travel in the message.

        Args:
            compared: the message may have to be compared with that of another run, so its token must say
                what is in it.
        """
        size = len(stream) + sum(raw.nbytes for raw in raws)
        if self.store is None or not self.minimum or size < self.minimum:
            return None
        with self._lock:
            if self._under_way + size > self.limit:
                return None
            self._under_way += size
        held = Held(None, None)
        weakref.finalize(held, self._given_back, size)
        held.reference = self.store.put([stream, *raws])
        if held.reference is None:
            return None
        said = likeness_of(stream, raws).to_bytes(8, "big") if compared else secrets.token_bytes(8)
        return Parcel.of(MARK + secrets.token_bytes(8) + said, held)

    def _given_back(self, size: int) -> None:
        with self._lock:
            self._under_way -= size

    # -- sending -------------------------------------------------------------------------------

    def note(self, parcel: Parcel) -> None:
        """A message with this parcel was made here; `leaving` will find it in one that leaves."""
        self.fresh[parcel.data] = parcel.held

    def leaving(self, messages: Iterable[bytes]) -> None:
        """Messages leave; what was noted and is in none of them was made by a handler that raised."""
        for message in messages:
            for token in tokens_in(message):
                held = self.fresh.get(token)
                if held is not None:
                    self.out[token] = _Out(held)
        self.fresh.clear()

    def accompany(self, stamp: Stamp, last: int, body: bytes) -> list[bytes]:
        """The packets that go ahead of a frame on its link."""
        packets = []
        for token in tokens_in(body):
            entry = self.out.get(token)
            if entry is not None:
                entry.peer, entry.last = stamp.receiver, last
                packets.append(self._packet(stamp, last, token, entry))
        return packets

    def _packet(self, stamp: Stamp, last: int, token: bytes, entry: _Out) -> bytes:
        held, form = entry.held, _BYTES
        content: Any = None
        entry.tries += 1
        if self.store is not None and self.minimum and entry.tries == 1:
            if held.reference is None:
                assert held.parts is not None
                held.reference = self.store.put(held.parts)
            if held.reference is not None:
                form, content = _REFERENCE, self.store.share(held.reference)
        if content is None:
            content = [_plain(part) for part in self._parts(held)]
        head = [_KIND, stamp.run, stamp.epoch, *stamp.sender, *stamp.receiver]
        packed: bytes = msgpack.packb([*head, last, token, form, content])
        return packed

    def _parts(self, held: Held) -> Parts:
        if held.parts is not None:
            return held.parts
        assert self.store is not None
        return self.store.read(held.reference)

    # -- receiving -----------------------------------------------------------------------------

    def arrived(self, packet: bytes, me: Member, run: str, endpoint: Endpoint) -> bool:
        """Takes a parcel; false if its reference does not lead to it, so that it must come again."""
        fields = msgpack.unpackb(packet, max_bin_len=len(packet), max_str_len=len(packet))
        _, its_run, epoch, sender, sender_birth, name, birth, last, token, form, content = fields
        if its_run != run or epoch != endpoint.epoch or Member(name, birth) != me:
            return True
        peer = Member(sender, sender_birth)
        channel = endpoint.incoming.get(peer)
        if token in self.waiting or (channel is not None and last <= channel.processed):
            return True
        if form == _REFERENCE:
            try:
                if self.store is None:
                    return False
                content = self.store.fetch(content)
            except Exception:
                return False
        self.waiting[token] = _In(peer, last, content)
        return True

    def open(self, token: bytes) -> Parts:
        """The content of a message that is handled now: the pickle, then the buffers.

        Raises:
            CutlineError: it is not here.
        """
        entry = self.waiting.pop(token, None)
        if entry is None:
            raise CutlineError("a message was handled before its large argument had come; this is a bug")
        return entry.parts

    # -- keeping -------------------------------------------------------------------------------

    def sweep(self, endpoint: Endpoint) -> None:
        """Forgets what is released, and what was passed over."""
        for token, sent in list(self.out.items()):
            channel = endpoint.outgoing.get(sent.peer) if sent.peer is not None else None
            gone = sent.peer is not None and endpoint.is_gone(sent.peer)
            if gone or (channel is not None and channel.released >= sent.last):
                del self.out[token]
        for token, come in list(self.waiting.items()):
            source = endpoint.incoming.get(come.peer) if come.peer is not None else None
            over = come.peer is not None and source is None and endpoint.is_gone(come.peer)
            if over or (source is not None and source.processed >= come.last):
                del self.waiting[token]

    def to_doc(self) -> list[list[Any]]:
        """What an image holds; `sweep` first."""
        sent = [[token, 0, [_plain(p) for p in self._parts(entry.held)]] for token, entry in self.out.items()]
        come = [[token, 1, [_plain(p) for p in entry.parts]] for token, entry in self.waiting.items()]
        return sent + come

    def load(self, doc: Iterable[Sequence[Any]]) -> None:
        """Takes back what an image holds."""
        for token, here, parts in doc:
            if here:
                self.waiting[token] = _In(None, 0, parts)
            else:
                self.out[token] = _Out(Held(None, parts))

    def kept(self, peer: Member, last: int, body: bytes) -> None:
        """A frame that an image held; its receiver may have it, and then it is never sent again."""
        for token in tokens_in(body):
            entry = self.out.get(token)
            if entry is not None:
                entry.peer, entry.last = peer, last

    def undelivered(self, messages: Iterable[bytes]) -> None:
        """Nobody will ever take these."""
        for message in messages:
            for token in tokens_in(message):
                self.out.pop(token, None)

    def clear(self) -> None:
        """Forgets everything: another state takes the place of the one that this belongs to."""
        self.out.clear()
        self.waiting.clear()
        self.fresh.clear()


def tokens_in(body: bytes | memoryview) -> list[bytes]:
    """What looks like a token; whoever asks knows which ones are."""
    # Of a body that lies on disk (`spill`) only a search knows what is in it.
    return _TOKENS.findall(body) if isinstance(body, memoryview) or MARK in body else []


def is_parcel_packet(payload: bytes) -> bool:
    """Whether a packet of the data lane is a parcel."""
    return payload.startswith(_HEAD)


def _plain(part: Any) -> bytes:
    return part if type(part) is bytes else bytes(memoryview(part).cast("B"))
