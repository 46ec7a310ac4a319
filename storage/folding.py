"""Keeping chains short: a delta that is written so that it stands for several.

Theory of operation. A delta may be relative to any older image of its chain, if it holds all that changed
since. So a fold is no thing of its own: it is the delta of a checkpoint, written on an older parent, with
what the packs in between hold and nothing newer hides. It is written under its checkpoint's key, behind the
capture, and becomes part of a cut by that checkpoint's commit or not at all; nothing that was committed
changes, and whoever still needs the packs in between lists them.

`fold_of` decides. Beside the full pack a chain has at most ``most`` packs. When it is full, the newest of
those that were folded least often, and the new delta, become one. With 20 packs no byte is folded twice
before 230 deltas have come, nor three times before 1,770. When a chain would hold more than twice what its
image does, everything is written: as many bytes are dead then as live ones, and no old pack stays for ever
for a part of it that is still in use.

Contents of older packs are read, checked, and written on a few megabytes at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cutline.errors import Misuse

from .blobs import corrupt
from .extents import in_order
from .layers import Layer, Link, Tables, piece_place
from .pack import PackWriter
from .runs import Numbers, Runs, Spans, merged, packed_row, shown
from .scatter import Memory, Wanted

if TYPE_CHECKING:
    from .image import Piece, Region

__all__ = ("MOST", "SPARE", "Fold", "Mixed", "fold_of")

# Packs of a chain beside the full one.
MOST = 20
# Bytes that a chain may hold for each byte of its image.
SPARE = 2


class Fold(NamedTuple):
    """How many packs of the parent's chain stay, and how often the new one will have been folded."""

    keep: int
    times: int


def fold_of(links: Sequence[Link], own: int, whole: int, everything: bool, most: int) -> Fold:
    """What becomes of a delta of ``own`` bytes on a chain; ``whole``: what its image takes written whole."""
    if everything:
        return Fold(0, 0)
    keep, times = len(links), 0
    if keep > most:
        times = links[-1].folded + 1
        while keep > 1 and links[keep - 1].folded < times:
            keep -= 1
    folded = own + sum(link.length for link in links[keep:])
    if sum(link.length for link in links[:keep]) + min(folded, whole) > SPARE * whole:
        return Fold(0, 0)
    return Fold(keep, times)


class _Source(NamedTuple):
    """Where parts of a drawn stretch come from: a layer's stream, or runs in memory one after the other."""

    runs: Runs
    layer: Layer | None


class Mixed:
    """The contents of an image that is being written: its own, and those of the packs that it folds."""

    def __init__(self, key: str, pieces: Sequence[Piece], regions: Sequence[Region], base: Tables) -> None:
        self._key = key
        self._pieces = pieces
        self._regions = [(region, _own_runs(key, region)) for region in regions]
        self._base = base
        self._folded: Sequence[Layer] = ()
        self._below: Layer | None = None
        self.size = sum(memoryview(p.content).nbytes for p in pieces if p.content is not None)
        self.size += sum(runs.covered for _, (_, runs) in self._regions)
        self.everything = all(piece.content is not None for piece in pieces) and all(
            runs.covered == region.size for region, (_, runs) in self._regions
        )
        self._check()

    def fold(self, layers: Sequence[Layer], count: int) -> None:
        """Takes the contents of the newest ``count`` layers of the parent as well."""
        self._folded = layers[:count]
        self._below = layers[count] if count < len(layers) else None

    def _check(self) -> None:
        """What is left out must be in the parent."""
        for piece in self._pieces:
            found = self._base.pieces.get(piece.name, (b"", 0))[0]
            if piece.content is None and found != piece.digest:
                raise Misuse(
                    f"image {self._key} leaves out piece {piece.name!r}, which its parent does not hold with"
                    " that digest: write its content",
                    key=self._key,
                )
        for region, (_, runs) in self._regions:
            if runs.covered < region.size and self._base.regions.get(region.number) != region.size:
                raise Misuse(
                    f"image {self._key} writes only {runs.covered} of {region.size} bytes of region"
                    f" {region.number}, which its parent does not hold in that size: write it whole",
                    key=self._key,
                )

    # -- pieces --------------------------------------------------------------------------------------

    def piece_table(self, writer: PackWriter) -> list[list[Any]]:
        """The document's table; the contents go to the writer."""
        table: list[list[Any]] = []
        drawn: dict[int, list[tuple[int, int, list[Any]]]] = {}
        for piece in self._pieces:
            row: list[Any] = [piece.name, piece.digest, None]
            table.append(row)
            if self._below is not None and self._below.pieces.get(piece.name, (b"",))[0] == piece.digest:
                continue
            if piece.content is not None:
                row[2] = [writer.add(piece.content), memoryview(piece.content).nbytes]
            elif self._folded:
                number, (position, length) = piece_place(self._folded, piece.name, piece.digest)
                drawn.setdefault(number, []).append((position, length, row))
        for number, found in sorted(drawn.items()):
            self._draw_pieces(writer, self._folded[number], found)
        return table

    @staticmethod
    def _draw_pieces(writer: PackWriter, layer: Layer, found: list[tuple[int, int, list[Any]]]) -> None:
        found.sort(key=lambda item: item[0])
        rows, end = [], 0
        for position, length, row in found:
            row[2] = [writer.length + end, length]
            if length:
                rows.append((position, end, length))
            end += length
        writer.draw(end, partial(_fill, [_Source(Runs.of(rows), layer)], []))

    # -- regions -------------------------------------------------------------------------------------

    def region_table(self, writer: PackWriter) -> list[list[Any]]:
        """The document's table; the contents go to the writer."""
        return [
            [region.number, region.size, self._region(writer, region, contents, own)]
            for region, (contents, own) in self._regions
        ]

    def _region(
        self, writer: PackWriter, region: Region, contents: list[memoryview], own: Runs
    ) -> list[Any] | None:
        sources = [_Source(own, None)]
        _, lacking = shown(own, Spans.of([(0, region.size)]))
        for layer in self._folded:
            if not len(lacking.starts):
                break
            parts, lacking = shown(layer.region(region.number, region.size), lacking)
            sources.append(_Source(parts, layer))
        if len(lacking.starts) and self._folded:
            if self._below is None:
                raise corrupt(self._folded[-1].key, f"does not cover region {region.number}")
            self._below.region(region.number, region.size)
        offsets = np.concatenate([source.runs.offsets for source in sources])
        if not len(offsets):
            return None
        if len(sources) == 1:
            position = writer.length
            for content in contents:
                writer.add(content)
            return packed_row(position, own.offsets, own.lengths)
        return self._drawn(writer, sources, contents, offsets)

    @staticmethod
    def _drawn(
        writer: PackWriter, sources: list[_Source], contents: list[memoryview], offsets: Numbers
    ) -> list[Any]:
        """The parts of all sources in the order of their offsets."""
        lengths = np.concatenate([source.runs.lengths for source in sources])
        order = np.argsort(offsets, kind="stable")
        ends = np.cumsum(lengths[order])
        places = np.empty_like(ends)
        places[order] = ends - lengths[order]
        arranged, at = [], 0
        for source in sources:
            count = len(source.runs.offsets)
            runs = source.runs._replace(offsets=places[at : at + count])
            arranged.append(source._replace(runs=runs))
            at += count
        position = writer.draw(int(ends[-1]), partial(_fill, arranged, contents))
        return packed_row(position, *merged(offsets[order], lengths[order]))


def _own_runs(key: str, region: Region) -> tuple[list[memoryview], Runs]:
    """The changed runs of a region in order, some in each content, and where they go. Raises Misuse."""
    extents = in_order(region.extents)
    offsets, lengths = extents.offsets, extents.lengths
    ends = offsets + lengths
    if len(ends) and (int(offsets[0]) < 0 or (offsets[1:] < ends[:-1]).any()):
        raise Misuse(f"image {key}: runs of region {region.number} overlap", key=key)
    if len(ends) and int(ends[-1]) > region.size:
        raise Misuse(
            f"image {key}: region {region.number} has {region.size} bytes, a run ends at {int(ends[-1])}",
            key=key,
        )
    contents = [part if part.format == "B" and part.ndim == 1 else part.cast("B") for part in extents.parts]
    return contents, Runs(np.cumsum(lengths) - lengths, offsets, lengths)


def _fill(sources: Sequence[_Source], contents: Sequence[memoryview], start: int, target: Memory) -> None:
    """The part of a drawn stretch from ``start`` on."""
    window = Spans.of([(start, start + len(target))])
    sizes = np.array([content.nbytes for content in contents], np.int64)
    starts = np.cumsum(sizes) - sizes
    for source in sources:
        parts, _ = shown(source.runs, window)
        parts = parts._replace(offsets=parts.offsets - start)
        if source.layer is not None:
            if len(parts.lengths):
                source.layer.reader.scatter([Wanted(target, parts)])
        else:
            _copy_own(starts, contents, parts, target)


def _copy_own(starts: Numbers, contents: Sequence[memoryview], parts: Runs, target: Memory) -> None:
    view = memoryview(target.data)
    numbers = (np.searchsorted(starts, parts.positions, "right") - 1).tolist()
    for number, position, offset, length in zip(numbers, *(each.tolist() for each in parts), strict=True):
        inside = position - int(starts[number])
        view[offset : offset + length] = contents[number][inside : inside + length]
