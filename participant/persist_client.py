"""A participant's way to the persister process of its machine: start it, find it, send it images.

Theory of operation. The thread of `Persister` stays: it takes the jobs in their order, and hands those that
are worth it to the process, waits, and posts the outcome. So order and `drain` are what they were, and the
captured bytes are referred to here until the outcome is known. When the process dies, is stopped, or cannot
be had, the thread goes on from what it still holds: it sends the image again, to another process, or writes
it itself. A second try goes under a key of its own: the first one may have been written all the same, or
still be, and nobody will name it.

There is one process for the participants that share a folder. A locked file decides who starts it; its
listening socket is made by whoever starts it, so that all others can call before it is up.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import os
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cutline.errors import RefusedOption
from cutline.storage.blobs import BlobStore, renewed
from cutline.storage.codec import digest_of
from cutline.storage.image import ImageRef
from cutline.storage.layers import Link, Tables, remember

from .persist import Persisted, Persister, PersistJob
from .persist_wire import GREETING, HungUp, Packing, Silent, Spool, receive, send, size_of_job
from .places import machine_id
from .scratch import common_folder, leave_common
from .shared_memory import Buffer, Buffers, buffers

__all__ = (
    "PERSISTER",
    "SOCKET",
    "WORTH",
    "ProcessPersister",
    "chosen_persister",
    "persister_for",
    "persister_here",
)

PERSISTER = ("process", "thread")
_VARIABLE = "CUTLINE_PERSISTER"
# Bytes of an image from which on it is sent to the process.
WORTH = 128 * 1024
# Bytes that are moved to shared memory at most; an image with more of them is written here.
MOST_MOVED = 32 << 20
# Seconds without a sign of life, of which there is one a second, of a process that writes: a rollback may
# have to wait for them. Those until one that was just started must have answered.
SILENCE, ANSWERS = 6.0, 20.0
# Seconds that one has for its answer that was silent the last time, such as one that somebody stopped.
ONCE_SILENT = 1.0
_TRIES = 3
# Seconds for which it is left alone after it could not be had.
_REST = 30.0
# Seconds without an image after which what lies ready for large copies is given up.
RESTED = 10.0
_SPOOL_MIN = 1 << 20
_SPOOL_KEPT = 8 << 20
SOCKET, LOCK = "persist.sock", "persist.lock"
_START = 10.0
# Where the participant finds modules, in the environment of the process. The program may have added places,
# or gone to another folder, and what is not Cutline's must be found too.
_PATH = "CUTLINE_PERSISTER_PATH"
# The process is nobody's child: who kills a participant's children, or waits for them, must not meet it.
_APART = (
    "import os, sys\n"
    "if os.fork(): os._exit(0)\n"
    "if sys.path[:1] == ['']: del sys.path[0]\n"
    f"known = os.environ.pop({_PATH!r}).split(os.pathsep)\n"
    "sys.path += [entry for entry in known if entry not in sys.path]\n"
    "os.setsid()\n"
    "from cutline.participant.persist_server import main\n"
    "sys.exit(main(sys.argv[1:]))\n"
)
_log = logging.getLogger("cutline")
_connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()
# The lock of a process that is being started.
_locks: set[int] = set()


def _after_fork_in_child() -> None:
    """Else a participant that is gone would look alive for as long as a child of its lives, and a process
    that is gone as if it listened still."""
    for connection in list(_connections):
        connection.close()
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_after_fork_in_child)


def chosen_persister(environment: Mapping[str, str] = os.environ) -> str:
    """Raises RefusedOption: CUTLINE_PERSISTER names nothing that writes images."""
    told = environment.get(_VARIABLE, "process")
    if told not in PERSISTER:
        raise RefusedOption(f"{_VARIABLE}={told!r}: choose one of {', '.join(PERSISTER)}")
    return told


def persister_here(environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """("process", ""), or ("thread", the reason): what writes large images on this machine."""
    if chosen_persister(environment) == "thread":
        return "thread", f"{_VARIABLE} says so"
    if not hasattr(os, "memfd_create"):
        return "thread", "this system has no memory that can be handed to another process (memfd_create)"
    try:
        Buffer(os.sysconf("SC_PAGE_SIZE")).close()
    except OSError as error:
        return "thread", f"no memory that can be handed to another process: {error.strerror}"
    return "process", ""


class _Unavailable(Exception):
    """There is no persister process, and will be none for now; says why."""


class _Connection:
    """A call that is answered."""

    def __init__(self, connection: socket.socket, store: str, patience: float) -> None:
        self.socket = connection
        self.known: set[int] = set()
        try:
            connection.settimeout(patience)
            send(connection, {"greeting": GREETING, "store": store})
            answer = receive(connection) or {}
            if "refused" in answer:
                raise _Unavailable(answer["refused"])
            self.pid = int(answer["pid"])
            connection.settimeout(SILENCE)
        except BaseException:
            connection.close()
            raise

    def let_go(self, living: set[int]) -> None:
        """Tells which buffers are given up, so that their memory is free."""
        gone = self.known - living
        if gone:
            send(self.socket, {"new": [], "gone": list(gone)})
            self.known -= gone

    def write(self, doc: dict[str, Any], used: Mapping[int, Buffer], living: set[int]) -> dict[str, Any]:
        """Sends an image; what became of it."""
        new = [number for number in used if number not in self.known]
        gone = [number for number in self.known if number not in living and number not in used]
        head = {"new": [[number, used[number].size] for number in new], "gone": gone}
        send(self.socket, {**doc, **head}, [used[number].descriptor for number in new])
        self.known.update(new)
        self.known.difference_update(gone)
        while True:
            answer = receive(self.socket)
            if answer is not None:
                return answer


class ProcessPersister(Persister):
    """Hands large images to the persister process of `folder`; see the module's head.

    `store`: the URL that the process opens for the same place as `blobs`.
    """

    rest = RESTED

    def __init__(
        self, blobs: BlobStore, post: Callable[[Persisted], None], name: str, folder: Path, store: str
    ) -> None:
        self._name = name
        self._folder = folder
        self._store = store
        self._shared: Buffers = buffers()
        self._spool: Buffer | None = None
        self._connection: _Connection | None = None
        self._rest_until = 0.0
        self._patience = ANSWERS
        self._closing = False
        # As it was when this participant opened the store: handlers may set other credentials for theirs.
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
        self._environment = {**os.environ, _PATH: path}
        super().__init__(blobs, post, name)

    @property
    def pid(self) -> int:
        """The process that it is connected to; 0: none."""
        connection = self._connection
        return connection.pid if connection is not None else 0

    def close(self) -> None:
        """Ends the thread after what is queued, and hangs up."""
        super().close()
        self._closing = True
        self._hang_up()

    def _outcome(self, job: PersistJob) -> Persisted:
        if size_of_job(job) < WORTH or time.monotonic() < self._rest_until:
            self._let_go()
            return super()._outcome(job)
        try:
            return self._sent(job)
        except _Unavailable as error:
            self._leave_alone(str(error))
        except _TooMuch as error:
            _log.debug("participant %r writes an image itself: %s", self._name, error)
        except Exception as error:
            # Such as too little memory. What was to be read of the connection must not answer the next image.
            self._hang_up()
            self._leave_alone(f"the image could not be sent: {error!r}")
        finally:
            # What was missed in this capture lies ready in the next one.
            self._shared.prepare()
        return super()._outcome(job._replace(key=renewed(job.key)))

    def _rested(self) -> None:
        self._shared.large.give_up()

    def _let_go(self) -> None:
        """Of what lies idle. A small image needs none of it, and there may be no other ones to come."""
        self._shared.prepare(worth=False)
        if self._connection is None:
            return
        try:
            self._connection.let_go(self._shared.numbers() | ({self._spool.number} if self._spool else set()))
        except HungUp:
            self._hang_up()

    def _leave_alone(self, why: str) -> None:
        _log.warning("participant %r writes its images itself for %.0f s: %s", self._name, _REST, why)
        self._rest_until = time.monotonic() + _REST

    def _sent(self, job: PersistJob) -> Persisted:
        spool = Spool(self._spooled)
        packing = Packing(self._shared.place, spool)
        doc = packing.job(job, job.key, self.most if job.fold else None)
        if spool.size > MOST_MOVED:
            raise _TooMuch(f"{spool.size:,} bytes would have to be moved to shared memory first")
        try:
            number = spool.fill()
        except OSError as error:
            raise _Unavailable(f"no shared memory: {error}") from error
        used = {each: self._shared.get(each) for each in packing.used}
        if self._spool is not None:
            used[number] = self._spool
        for attempt in range(_TRIES):
            if attempt:
                doc["key"] = renewed(job.key)
            try:
                answer = self._connected().write({"job": doc, "spool": number}, used, self._shared.numbers())
            except Silent as error:
                self._hang_up()
                self._patience = ONCE_SILENT
                raise _Unavailable(f"the persister process is silent for {error.seconds:.0f} s") from error
            except HungUp as error:
                _log.debug("participant %r: the persister process is gone: %s", self._name, error)
                self._hang_up()
                continue
            return self._persisted(job, doc["key"], answer)
        raise _Unavailable(f"the persister process was lost {_TRIES} times with the same image")

    @staticmethod
    def _persisted(job: PersistJob, key: str, answer: Mapping[str, Any]) -> Persisted:
        """Raises LookupError, TypeError, ValueError: that is no answer to this image."""
        if answer["ref"] is None:
            return Persisted(job.epoch, job.checkpoint, None, answer["reason"], answer["damaged"])
        ref = ImageRef.from_doc(answer["ref"])
        if ref.key != key:
            raise ValueError(f"{ref.key} was written, and {key} was asked for")
        if answer["tables"] is not None:
            # The next image may be a small one, which is written here.
            pieces, regions, links = answer["tables"]
            found = Tables(
                {name: (digest, size) for name, digest, size in pieces},
                {number: size for number, size in regions},
                tuple(Link(*link) for link in links),
            )
            remember(ref.digest, found)
        return Persisted(job.epoch, job.checkpoint, ref, "")

    def _spooled(self, size: int) -> tuple[int, int]:
        spool = self._spool
        if spool is None or spool.size < size or (spool.size > _SPOOL_KEPT and size < _SPOOL_KEPT):
            wanted = _SPOOL_MIN
            while wanted < size:
                wanted *= 2
            self._spool = None
            if spool is not None:
                spool.close()
            spool = self._spool = Buffer(wanted)
        return spool.number, spool.descriptor

    # -- the process -----------------------------------------------------------------------------------

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.socket.close()

    def _connected(self) -> _Connection:
        """Raises _Unavailable, HungUp."""
        if self._closing:
            raise _Unavailable("the participant ends")
        if self._connection is None:
            called, fresh = self._call()
            self._connection = _Connection(called, self._store, ANSWERS if fresh else self._patience)
            self._patience = ANSWERS
        return self._connection

    def _call(self) -> tuple[socket.socket, bool]:
        """A connection to the process, and whether that was started for it."""
        deadline, started = time.monotonic() + _START, 0
        while time.monotonic() < deadline:
            connection = socket.socket(socket.AF_UNIX)
            _connections.add(connection)
            try:
                connection.connect(str(self._folder / SOCKET))
                return connection, started > 0
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
                if started == _TRIES:
                    raise _Unavailable("the persister process ends as soon as it is started") from None
                if self._start():
                    started += 1
                else:
                    time.sleep(0.01)
            except OSError as error:
                connection.close()
                raise _Unavailable(f"{self._folder / SOCKET}: {error}") from error
        raise _Unavailable(f"nobody answers at {self._folder / SOCKET}, and another process holds {LOCK}")

    def _start(self) -> bool:
        """Whether this participant started it; false: another one is about to, or it is just ending."""
        try:
            lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _Unavailable(f"{self._folder / LOCK}: {error.strerror}") from error
        _locks.add(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._launch(lock, str(self._folder / SOCKET))
        except BlockingIOError:
            return False
        except OSError as error:
            raise _Unavailable(f"{self._folder / LOCK} cannot be locked: {error.strerror}") from error
        finally:
            _locks.discard(lock)
            os.close(lock)
        return True

    def _launch(self, lock: int, path: str) -> None:
        """Returns when the process is on its own. Raises _Unavailable."""
        try:
            with contextlib.suppress(FileNotFoundError):
                # Of one that was killed.
                os.unlink(path)
            with socket.socket(socket.AF_UNIX) as listener:
                _connections.add(listener)
                listener.bind(path)
                listener.listen(128)
                _run_apart(lock, listener.fileno(), path, self._environment)
        except (OSError, subprocess.SubprocessError) as error:
            raise _Unavailable(f"the persister process cannot be started: {error}") from error


def persister_for(
    spec: Mapping[str, Any], blobs: BlobStore, post: Callable[[Persisted], None], folder: Path
) -> Persister:
    """What writes the images of the participant of a launch document.

    `folder`: the run's, private to this user; on machines where the run has none, another one is found.
    """
    name = spec["member"][0]
    if spec["persister"] == "thread" or persister_here()[0] == "thread":
        return Persister(blobs, post, name)
    if spec["machine"] != machine_id():
        # There the run has no folder, and each participant one of its own.
        try:
            folder = Path(common_folder(digest_of(f"{spec['system']}/{spec['run']}".encode())[:8].hex()))
        except OSError as error:
            _log.warning("participant %r writes its images itself: %s", name, error)
            return Persister(blobs, post, name)
        atexit.register(leave_common, str(folder))
    return ProcessPersister(blobs, post, name, folder, spec["store"])


class _TooMuch(Exception):
    """More would have to be moved than it is worth."""


def _run_apart(lock: int, listener: int, path: str, environment: Mapping[str, str]) -> None:
    """Starts the process; returns when it is on its own. Raises OSError."""
    home = str(Path(sys.modules["cutline"].__file__ or "").parent.parent)
    known = environment.get("PYTHONPATH")
    subprocess.run(
        (sys.executable, "-c", _APART, str(lock), str(listener), path),
        stdin=subprocess.DEVNULL,
        pass_fds=(lock, listener),
        check=False,
        timeout=_START,
        env={
            **environment,
            "PYTHONPATH": f"{known}{os.pathsep}{home}" if known else home,
            # It multiplies no matrices.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        },
    )
