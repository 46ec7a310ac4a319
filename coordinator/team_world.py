"""The world outside of the team of ``cutline demo --agents``: a bank in a SQLite file, and a dumb service.

The service appends every request to a file before it answers, whatever it says, and never looks whether it
was sent before: what is in that file has happened. It belongs to no participant and outlives all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import threading
import time
import urllib.parse
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ("MONEY", "Service", "bookings", "make_bank", "read_log")

# Cents in the account at the beginning.
MONEY = 10_000_000
# Seconds that an answer takes at most, after what was asked for has happened.
_SLOWEST = 0.25


def make_bank(path: Path) -> None:
    """An account, and nothing booked."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE account (cents INTEGER NOT NULL)")
        connection.execute("CREATE TABLE bookings (key TEXT PRIMARY KEY, invoice TEXT, cents INTEGER)")
        connection.execute("INSERT INTO account VALUES (?)", (MONEY,))


def bookings(path: Path) -> tuple[int, list[tuple[str, int]]]:
    """What is left in the account, and (invoice, cents) of each booking."""
    with closing(sqlite3.connect(path)) as connection:
        (left,) = connection.execute("SELECT cents FROM account").fetchone()
        return left, connection.execute("SELECT invoice, cents FROM bookings ORDER BY invoice").fetchall()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The requests that the service was sent, in order; questions are not among them."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [entry for entry in map(json.loads, lines) if entry["what"] != "seen"]


class Service:
    """A local HTTP server on a thread of its own; `url` is where it listens."""

    def __init__(self, log: Path, seed: int) -> None:
        self.log = log
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            """One request."""

            def do_POST(self) -> None:
                """Something is to be done."""
                about = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.note(self.path.strip("/"), about)
                receipt = _receipt(about)
                time.sleep(service.pause())
                self._reply({"receipt": receipt})

            def do_GET(self) -> None:
                """Somebody asks whether something was done."""
                (key,) = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["key"]
                service.note("seen", {"key": key})
                found = [
                    _receipt(entry["about"])
                    for entry in read_log(service.log)
                    if entry["about"]["key"] == key
                ]
                self._reply({"receipts": found})

            def _reply(self, doc: dict[str, Any]) -> None:
                body = json.dumps(doc).encode()
                try:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except (BrokenPipeError, ConnectionResetError):
                    # Whoever has asked was killed meanwhile; what was asked for has happened.
                    return

            def log_message(self, *_about: object) -> None:
                """The file is the log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def note(self, what: str, about: dict[str, Any]) -> None:
        """Appends a request."""
        line = json.dumps({"what": what, "at": time.time(), "about": about}) + "\n"
        with self._lock:
            descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)

    def pause(self) -> float:
        """Seconds until the next answer."""
        with self._lock:
            return self._chance.uniform(0.0, _SLOWEST)

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _receipt(about: dict[str, Any]) -> str:
    """The same for the same request, whatever its key is."""
    said = json.dumps({name: value for name, value in about.items() if name != "key"}, sort_keys=True)
    return hashlib.blake2b(said.encode(), digest_size=6).hexdigest()
