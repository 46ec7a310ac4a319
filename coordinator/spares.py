"""Spare hosts: they stand by for participants that are lost.

Most of a recovery on Ray is the start of a worker process: more than a second, where reading an image of
256 MiB takes a fifth of one. Ray's own pool of idle workers is of no use, because a participant's process has
an environment of its own from its first instruction on (PYTHONHASHSEED). So a host is kept ready that has
imported what every participant needs, knows of no participant and holds nothing of the user's: it waits at a
socket of ours for the document that tells it who it is. From then on it is like any other.

- Only a participant for whom exactly the same host would be asked for is put into one: the options of both
  are compared. A spare reserves nothing, so whoever has resources, an environment or a place of its own gets
  a process of its own, as before.
- They come one after the other, each when the one before is up: nobody waits for them, and the program's own
  work goes on meanwhile. How many there are unless the user says it: one for each participant that could use
  one, up to `MOST` and as far as memory reaches (`spare_room`).
- The connection is the lease: a spare whose coordinator closes it, or is killed, ends itself.
- A spare that is still coming up may be taken; the document waits for it. One that has died is replaced.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutline.errors import SpawnFailed
from cutline.participant.standing_by import LAUNCH_BYTES, hand_over, received

from .spare_room import room_for_another

__all__ = ("MOST", "SPARE", "Spares")

_log = logging.getLogger("cutline")
# What the names of spares begin with; no participant may be called so.
SPARE = "@spare"
# How many there are at most, unless the user says how many.
MOST = 8
# Seconds without a start of anybody before a system is taken to be up, and worth a spare.
SETTLED_AFTER = 2.0
# Seconds until another one is tried where one has died.
_AGAIN_AFTER = 10.0
# Seconds until the next connection is taken where one could not be.
_REFUSED_FOR = 0.1
# Seconds that a spare may take to say who it is, and to read its document.
_PATIENCE = 5.0


@dataclass
class _Spare:
    """One that stands by. `connection`: none before it is up. `document`: of who has taken it before that."""

    options: Mapping[str, Any]
    connection: socket.socket | None = None
    document: bytes = b""


class Spares:
    """The spares of one system.

    Args:
        count: how many are kept; None: see the module's head.
        folder: where their socket is.
        options: of a host for a participant without options of its own, nameless.
        start: starts a host with these options, which calls `await_document` with this launch and path;
            raises SpawnFailed. When it ends, `lost` is to be told.
        end: ends the host of a launch.
    """

    def __init__(
        self,
        count: int | None,
        folder: Path,
        options: Callable[[], Mapping[str, Any]],
        start: Callable[[Mapping[str, Any], str, str], None],
        end: Callable[[str], None],
    ) -> None:
        self.count = count
        self._options = options
        self._start_host = start
        self._end_host = end
        self._spares: dict[str, _Spare] = {}
        # Launches of participants that could be put into one.
        self._served: set[str] = set()
        self._lock = threading.Lock()
        # Held while a host is asked for, which somebody who is lost meanwhile had better wait for.
        self._starting = threading.Lock()
        self._due: float | None = None
        self._path = str(folder / f"{secrets.token_hex(6)}.sock")
        self._listener: socket.socket | None = None
        self._closed = False

    def expect(self, options: Mapping[str, Any]) -> bool:
        """Somebody with these options is being started, which comes first, and may be lost one day.

        Returns whether a spare would do then; `serve` says of whom.
        """
        fits = options == self._options()
        if fits or self._due is not None:
            self._due = time.monotonic() + SETTLED_AFTER
        return fits

    def serve(self, launch: str) -> None:
        """One more participant is there that could be put into a spare, until `lost` names it."""
        with self._lock:
            self._served.add(launch)

    def tend(self) -> None:
        """Ends those that fit no more, starts one if any is lacking; called again and again by one thread."""
        if self.count == 0 or self._due is None or time.monotonic() < self._due:
            return
        wanted = self._options()
        standing = self.standing()
        fitting = {launch: spare for launch, spare in standing if spare.options == wanted}
        for launch, _ in standing:
            if launch not in fitting:
                self._dismiss(launch)
        if any(spare.connection is None for spare in fitting.values()) or not self._lacks(len(fitting)):
            return
        try:
            with self._starting:
                self._start(wanted)
        except (SpawnFailed, OSError) as error:
            # Nobody needs it now; whoever is lost meanwhile is started as if there were no spares.
            _log.info("no host could be started to stand by: %s: %s", type(error).__name__, error)
            self._due = time.monotonic() + _AGAIN_AFTER

    def _lacks(self, standing: int) -> bool:
        """Whether there should be more than so many. Those who are too many stay: somebody was just lost, or
        has left, and the next one may be lost soon."""
        if self.count is not None:
            return standing < self.count
        # The first one is worth its memory.
        return standing < min(len(self._served), MOST) and (not standing or room_for_another(standing))

    def standing(self) -> list[tuple[str, _Spare]]:
        """Those that nobody has taken, by their launches; those that are up come first."""
        with self._lock:
            free = [entry for entry in self._spares.items() if not entry[1].document]
        return sorted(free, key=lambda entry: entry[1].connection is None)

    def _start(self, wanted: Mapping[str, Any]) -> None:
        if self._closed:
            return
        if self._listener is None:
            self._listener = self._listen()
        launch = secrets.token_hex(LAUNCH_BYTES // 2)
        # First, because it may be up before `start_host` has returned.
        with self._lock:
            self._spares[launch] = _Spare(wanted)
        try:
            self._start_host(wanted, launch, self._path)
        except SpawnFailed:
            with self._lock:
                del self._spares[launch]
            raise

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(self._path)
            listener.listen()
        except OSError:
            listener.close()
            raise
        threading.Thread(target=self._accept, args=(listener,), name="cutline-spares", daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if self._closed:
                    return
                # Out of descriptors, say. Who stands in the queue would wait for ever if nobody went on.
                _log.info("who stands by could not be let in: %s", error)
                time.sleep(_REFUSED_FOR)
                continue
            connection.settimeout(_PATIENCE)
            try:
                launch = received(connection, LAUNCH_BYTES).decode("ascii", "replace")
            except OSError:
                launch = ""
            with self._lock:
                spare = self._spares.get(launch)
                if spare is not None and not spare.document:
                    spare.connection = connection
                    continue
                self._spares.pop(launch, None)
            # Without a document it is nobody's, and ends itself. If it does not take one, its end is a loss.
            hand_over(connection, spare.document if spare is not None else b"")

    def take(self, options: Mapping[str, Any], document: Callable[[str], bytes]) -> str:
        """Makes one of them the participant of a document; returns its launch, empty if none fits.

        Args:
            options: of the host that would be started for the participant, nameless.
            document: of the launch.
        """
        with self._starting:
            standing = self.standing()
        for launch, spare in standing:
            if spare.options != options:
                continue
            with self._lock:
                if self._spares.get(launch) is not spare:
                    continue
                spare.document = document(launch)
                if spare.connection is None:
                    return launch
                del self._spares[launch]
            if hand_over(spare.connection, spare.document):
                return launch
            self._end_host(launch)
        return ""

    def lost(self, launch: str) -> bool:
        """Whether a host that has ended was nobody's; another one takes its place in a while."""
        with self._lock:
            self._served.discard(launch)
            spare = self._spares.pop(launch, None)
        if spare is None or spare.document:
            return False
        if spare.connection is not None:
            spare.connection.close()
        self._due = time.monotonic() + _AGAIN_AFTER
        return True

    def _dismiss(self, launch: str) -> None:
        with self._lock:
            spare = self._spares.get(launch)
            if spare is None or spare.document:
                return
            del self._spares[launch]
        if spare.connection is not None:
            spare.connection.close()
        self._end_host(launch)

    def close(self) -> None:
        """Ends those that stand by."""
        with self._starting:
            self.count = 0
            self._closed = True
            listener, self._listener = self._listener, None
        if listener is not None:
            # Wakes the thread that accepts; closing alone would not.
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            Path(self._path).unlink(missing_ok=True)
        for launch, _ in self.standing():
            self._dismiss(launch)
