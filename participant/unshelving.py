"""The containers of an image, made again from their segments, before anything else of the state is.

Empty ones are made first, so that a container may name any other, itself too. What is checked of them
comes later, with the attributes (`Container._fill`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cutline.errors import CannotRestore

from .rebuild import Loader, blank
from .shelf import segment_name

__all__ = ("check_filled", "unshelve")

Open = Callable[[io.BytesIO], Any]


def unshelve(
    rows: Sequence[Sequence[Any]], contents: Mapping[str, bytes], loader: Loader, opened: Open
) -> None:
    """Makes the containers of `loader`, which streams that `opened` opens name.

    Raises:
        CannotRestore: the image was written by a newer Cutline, or says something else than its header.
    """
    made = {row[0]: blank(row[1]) for row in rows}
    # An old segment may name containers that have gone; newer ones have something else in their places.
    loader.containers, loader.former = made, {}
    for number, _, _, _, _, segments in rows:
        for capture, _ in segments:
            name = segment_name(number, capture)
            if name not in contents:
                raise CannotRestore(f"an image without the piece {name!r}, which its header names")
            made[number]._replay(_documents(io.BytesIO(contents[name]), opened))
    strays = {id(stray) for stray in loader.former.values()}
    for number, kind, length, checked, nested, _ in rows:
        if loader.is_strict and not loader.findings.problems and len(made[number]) != length:
            raise CannotRestore(
                f"{kind} {number} of the image has {length} entries, its segments make {len(made[number])}: "
                "whatever wrote it is at fault; go back to another checkpoint"
            )
        if checked:
            loader.unfilled[id(made[number])] = kind, number, checked
        if nested or strays:
            made[number]._find_nested()
        if any(id(inner) in strays for inner in made[number]._nested()):
            raise CannotRestore(f"{kind} {number} of the image holds a container that the image has not")
    loader.former = None


def _documents(stream: io.BytesIO, opened: Open) -> Iterator[Any]:
    while True:
        # Another one for each: its memo cannot be cleared, as the writer's was.
        yield opened(stream).load()


def check_filled(loader: Loader) -> None:
    """When everything is there. Raises CannotRestore: something that was to be checked did not come."""
    for kind, number, checked in loader.unfilled.values():
        raise CannotRestore(
            f"{kind} {number} of the image has {checked} values that may change, which are not in it: "
            "whatever wrote it is at fault; go back to another checkpoint"
        )
