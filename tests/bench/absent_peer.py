"""Peers: whose package is nowhere, one that is refused, one that ends, one that hangs: for test_peers.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.peers.child import Absent, serve


@contextmanager
def _opened() -> Iterator[Callable[..., dict[str, Any]]]:
    if sys.argv[1] == "import":
        import cutline.no_such_peer  # type: ignore[import-not-found]  # noqa: F401
    if sys.argv[1] == "server":
        raise Absent("no such server here")
    print("printed by the peer")

    def answer(word: str) -> dict[str, Any]:
        if word == "hang":
            # With somebody that it has started, who would hold the pipes.
            subprocess.run(["sleep", "600"])
        if word == "end":
            raise SystemExit("the peer has had enough")
        return {"said": word}

    yield answer


if __name__ == "__main__":
    serve(_opened)
