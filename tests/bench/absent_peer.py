"""A peer whose package is installed nowhere, one that is refused, and one that ends: for test_peers.py."""

from __future__ import annotations

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
        if word == "end":
            raise SystemExit("the peer has had enough")
        return {"said": word}

    yield answer


if __name__ == "__main__":
    serve(_opened)
