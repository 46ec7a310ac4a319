"""The process way for a bucket and PostgreSQL: at a request the child is killed, or a line breaks.

Both servers are spoken to through proxies that count: each request to the bucket, and the beginning and the
end of each transaction. At the n-th the child is killed before the server hears of it, or when the server has
answered; or that connection breaks, before or after, and the child has to make do.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.crash.deeds import make_base
from tests.crash.judge import Wrong, judge, said_in
from tests.crash.power import Tally
from tests.crash.worker import Worker, a_worker, pid_file
from tests.storage.proxy import Cut, Proxy
from tests.storage.servers import S3, Postgres, a_postgres, an_s3

__all__ = ("WAYS", "Servers", "at_servers")

WAYS = ("killed before", "killed after", "request lost", "answer lost")
_TRANSACTION = (b"BEGIN", b"COMMIT")


class _Counter:
    """Counts requests over both lines; what happens at number ``at``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = self.at = 0
        self.way = ""
        self.pid_file = Path()

    def start(self, way: str, at: int, child: Path) -> None:
        with self._lock:
            self.count, self.at, self.way, self.pid_file = 0, at, way, child

    def strikes(self) -> bool:
        with self._lock:
            # The child takes it away when it has come to its end and goes on to show that it can.
            if not self.pid_file.is_file():
                return False
            self.count += 1
            return self.count == self.at

    def kill(self) -> None:
        os.kill(int(self.pid_file.read_text()), signal.SIGKILL)


class _Line(Proxy):
    """A proxy that counts requests with one of ``signs``; without signs all of them."""

    def __init__(self, port: int, counter: _Counter, signs: tuple[bytes, ...]) -> None:
        super().__init__(port)
        self._counter, self._signs = counter, signs

    def found(self, data: bytes) -> Cut | None:
        if self._signs and not any(sign in data for sign in self._signs):
            return None
        if not self._counter.strikes():
            return None
        if self._counter.way == "killed before":
            self._counter.kill()
        return Cut(b"", "answer" if self._counter.way in ("killed after", "answer lost") else "request", 0)

    def answered(self) -> None:
        if self._counter.way == "killed after":
            self._counter.kill()


@dataclass
class Servers:
    """Both servers, and the lines to them."""

    worker: Worker
    s3: S3
    postgres: Postgres
    counter: _Counter
    objects: Proxy
    tables: Proxy
    place: Path

    def _url(self, name: str, *, direct: bool) -> str:
        objects = self.s3.port if direct else self.objects.port
        tables = self.postgres.port if direct else self.tables.port
        catalog = self.postgres.url(name, port=tables)
        return f"{self.s3.url(name, port=objects)}&catalog={catalog}"

    def each(self, deed: str, way: str, *, every: int = 1, enough: int = 3) -> Tally:
        """Strikes each request, or each of ``every`` so many, others in each way, in a store of its own."""
        tally = Tally()
        at = 1 + WAYS.index(way) % every
        while len(tally.lost) < enough and not tally.over:
            tally.points += 1
            try:
                tally.over = self._one(deed, way, at)
            except Wrong as wrong:
                tally.lost.append(f"{deed}, {way}, request {at}: {wrong}")
            at += every
        return tally

    def _one(self, deed: str, way: str, at: int) -> bool:
        """Whether the deed came to its end before request ``at``."""
        name = f"crash_{secrets.token_hex(6)}"
        top = self.place / name
        top.mkdir()
        if deed != "make":
            make_base(top, self._url(name, direct=True))
        self.counter.start(way, at, pid_file(top))
        done = self.worker.do(deed, top, url=self._url(name, direct=False), goes_on="lost" in way)
        over = self.counter.count < at
        self.counter.start("", 0, Path())
        if "killed" in way and done.killed == over:
            raise Wrong(f"the child was {'' if done.killed else 'not '}killed")
        judge(top, self._url(name, direct=True), said_in(done.marks, None if deed == "make" else "old"))
        return over


@contextlib.contextmanager
def at_servers(place: Path) -> Iterator[Servers]:
    """Both servers, started for this. Raises LookupError where they cannot be had."""
    counter = _Counter()
    with contextlib.ExitStack() as stack:
        s3, postgres = stack.enter_context(an_s3()), stack.enter_context(a_postgres())
        objects = stack.enter_context(contextlib.closing(_Line(s3.port, counter, ())))
        tables = stack.enter_context(contextlib.closing(_Line(postgres.port, counter, _TRANSACTION)))
        settings = s3.environment()
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        stack.callback(_put_back, before)
        worker = stack.enter_context(a_worker())
        yield Servers(worker, s3, postgres, counter, objects, tables, place)


def _put_back(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
