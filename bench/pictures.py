"""The pictures of the report, from the document alone: PNG files, each as wide as a page.

Every axis says what it has and in which unit; what a colour or a mark means stands in a legend. Bars around a
mark are the 95 % interval of the median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from bench.bench_same_vs_same import GROUP as NOISE
from bench.matrix import CellRows, cells_of, is_cell
from bench.verdict import interval_of

__all__ = ("Picture", "draw_all")

Doc = Mapping[str, Any]

_WIDTH, _DPI = 9.0, 110
_LINE = 0.24  # inches of a row
_OURS, _THEIRS, _PALE = "#1f6feb", "#d9822b", "#8b949e"
_VERDICTS = {
    "holds": ("#1a7f37", "o", "holds: the whole interval meets the target"),
    "undecided": ("#9a6700", "D", "undecided: noise, or too few rounds"),
    "fails": ("#cf222e", "X", "fails: none of the interval meets it"),
}
_RATES = (1, 10)
# How far the axis of shares goes: beyond it there is only noise.
_SHOWN = 1.6


class Picture(NamedTuple):
    """A file, what it shows, and where it belongs: "targets", "matrix", "micro", or a group of rows."""

    name: str
    shows: str
    section: str


def _figure(lines: float, panels: int = 1, extra: float = 1.4) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(_WIDTH, _LINE * lines + extra), dpi=_DPI, layout="constrained")
    axes = figure.subplots(1, panels, sharey=True, squeeze=False)
    return figure, list(axes[0])


def _named(axes: Axes, labels: Sequence[str]) -> None:
    """The lines of a picture, the first one on top."""
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="x", color="#d0d7de", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", labelsize=8)


def _plain_numbers(axes: Axes) -> None:
    """A logarithmic axis with numbers that people read: 0.5, 10, 2,000."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < 300 * low:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _at: f"{value:,.12g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _mark(
    axes: Axes, at: float, y: float, ends: tuple[float, float], colour: str, mark: str, label: str | None
) -> None:
    below, above = max(at - ends[0], 0.0), max(ends[1] - at, 0.0)
    axes.errorbar(
        [at], [y], xerr=[[below], [above]], fmt=mark, color=colour, markersize=6.5, markeredgewidth=0,
        elinewidth=1.3, label=label,
    )  # fmt: skip


def _save(figure: Figure, folder: Path, name: str) -> None:
    figure.savefig(folder / name, metadata={"Software": None})


def _towards(row: Doc) -> tuple[float, float, float] | None:
    """Ratio and interval as multiples of the target, more being better; None where that has no meaning."""
    at_least, at_most = row["bounds"]
    figures = (row["ratio"], *row["interval"])
    if (at_least is None) == (at_most is None) or any(not figure for figure in figures):
        return None
    if at_least is not None:
        return row["ratio"] / at_least, row["interval"][0] / at_least, row["interval"][1] / at_least
    return at_most / row["ratio"], at_most / row["interval"][1], at_most / row["interval"][0]


def _targets(doc: Doc, folder: Path) -> list[Picture]:
    """All rows with a target of the product's own, as multiples of it."""
    rows = [(row, towards) for row in doc["rows"] if not row["group"] and (towards := _towards(row))]
    if not rows:
        return []
    rows.sort(key=lambda each: each[1][0])
    figure, (axes,) = _figure(len(rows), extra=1.7)
    seen: set[str] = set()
    for y, (row, (at, low, high)) in enumerate(rows):
        colour, mark, label = _VERDICTS[row["verdict"]]
        _mark(axes, at, y, (low, high), colour, mark, None if row["verdict"] in seen else label)
        seen.add(row["verdict"])
    axes.axvline(1.0, color="black", linewidth=1.2, label="the target")
    _plain_numbers(axes)
    _named(axes, [f"{row['name']}  ({row['target'].split(' ', 1)[1]})" for row, _ in rows])
    axes.set_xlabel(
        "measured as a multiple of the target (right of the line is better), logarithmic", fontsize=9
    )
    figure.suptitle("Every row against its target", fontsize=11)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    _save(figure, folder, "targets.png")
    shows = "Each row's ratio as a multiple of its target, with its interval and verdict"
    return [Picture("targets.png", shows, "targets")]


def _peers(doc: Doc, folder: Path) -> list[Picture]:
    """For each group and unit: our figure and that of each peer."""
    found: dict[tuple[str, str], list[Doc]] = {}
    for row in doc["rows"]:
        if row["group"] not in ("", NOISE) and not is_cell(row):
            found.setdefault((row["group"], row["unit"]), []).append(row)
    pictures = []
    for (group, unit), rows in found.items():
        figure, (axes,) = _figure(len(rows), extra=1.6)
        for y, row in enumerate(rows):
            for side, colour, mark, label in (
                ("ours", _OURS, "o", "Cutline"),
                ("baseline", _THEIRS, "s", "the other"),
            ):
                ends = interval_of(row["samples"][side])
                _mark(axes, row[side], y, (ends.low, ends.high), colour, mark, None if y else label)
            axes.plot([row["ours"], row["baseline"]], [y, y], color=_PALE, linewidth=0.8, zorder=1)
        if all(row[side] > 0 for row in rows for side in ("ours", "baseline")):
            _plain_numbers(axes)
        _named(axes, [_shortened(f"{row['name']}: {row['against']}") for row in rows])
        better = "right is better" if _more_is_better(unit) else "left is better"
        axes.set_xlabel(f"{unit} ({better}), logarithmic", fontsize=9)
        figure.suptitle(f"Cutline beside others: {group}", fontsize=11)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        name = f"{group}-{''.join(c if c.isalnum() else '-' for c in unit).strip('-')}.png"
        _save(figure, folder, name)
        shows = f"Cutline and what it is measured against: {group}, in {unit}"
        pictures.append(Picture(name, shows, group))
    return pictures


def _more_is_better(unit: str) -> bool:
    """What a unit says: rates and shares are to be large, times and sizes small."""
    return "/s" in unit or unit.startswith(("of ", "share "))


def _shortened(text: str, width: int = 74) -> str:
    return text if len(text) <= width else text[: width - 1].rstrip() + "…"


def _kept(cells: Sequence[CellRows], folder: Path) -> Picture:
    figure, panels = _figure(1.3 * len(cells), len(_RATES), extra=1.6)
    for axes, rate in zip(panels, _RATES, strict=True):
        for y, cell in enumerate(cells):
            row = cell.rows.get(("kept", rate))
            if row is None:
                continue
            for side, colour, mark, label, off in (
                ("ours", _OURS, "o", "Cutline", -0.15),
                ("baseline", _THEIRS, "s", "plain Ray: hold still, save own state", 0.15),
            ):
                ends = interval_of(row["samples"][side])
                first = y == 0 and rate == _RATES[0]
                _mark(axes, row[side], y + off, (ends.low, ends.high), colour, mark, label if first else None)
        axes.axvline(1.0, color="black", linewidth=1.0)
        axes.set_xlim(0.0, _SHOWN)
        _named(axes, [cell.label for cell in cells])
        axes.set_title(f"{rate} checkpoint{'s' if rate > 1 else ''} a second asked for", fontsize=9)
        axes.set_xlabel("share of own throughput that is kept", fontsize=9)
    figure.suptitle("What checkpoints leave of the throughput (1 = they cost nothing)", fontsize=11)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    _save(figure, folder, "overhead-kept.png")
    shows = "Share of its own throughput that each side keeps, in each cell of the matrix"
    return Picture("overhead-kept.png", shows, "matrix")


def _throughput(cells: Sequence[CellRows], folder: Path) -> Picture:
    figure, (axes,) = _figure(2.6 * len(cells), extra=1.5)
    series = (
        ("ray", 0, "baseline", _PALE, "s", "plain Ray, no checkpoints"),
        ("pattern", 1, "baseline", "#e8a862", "<", "plain Ray, 1/s saved by hand"),
        ("pattern", 10, "baseline", "#a85400", "v", "plain Ray, 10/s saved by hand"),
        ("ray", 0, "ours", "#0a3069", "o", "Cutline, no checkpoints"),
        ("ray", 1, "ours", "#1f6feb", ">", "Cutline, 1/s"),
        ("ray", 10, "ours", "#80ccff", "^", "Cutline, 10/s"),
    )
    for number, (figure_name, rate, side, colour, mark, label) in enumerate(series):
        for y, cell in enumerate(cells):
            row = cell.rows.get((figure_name, rate))
            if row is not None:
                ends = interval_of(row["samples"][side])
                place = y + (number - 2.5) * 0.14
                _mark(axes, row[side], place, (ends.low, ends.high), colour, mark, None if y else label)
    _plain_numbers(axes)
    _named(axes, [cell.label for cell in cells])
    axes.set_xlabel(
        "messages handled a second by all actors together (right is better), logarithmic", fontsize=9
    )
    figure.suptitle("The same actors on plain Ray and with Cutline", fontsize=11)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    _save(figure, folder, "overhead-throughput.png")
    shows = "Messages a second of both sides, in each cell and at each rate"
    return Picture("overhead-throughput.png", shows, "matrix")


def _micro(doc: Doc, folder: Path) -> list[Picture]:
    parts = doc["micro"]
    if not parts:
        return []
    figure, (axes,) = _figure(len(parts), extra=1.2)
    for y, part in enumerate(parts):
        ends = (part["q1"] * 1e6, part["q3"] * 1e6)
        _mark(axes, part["median"] * 1e6, y, ends, _OURS, "o", None)
    _plain_numbers(axes)
    _named(axes, [part["what"] for part in parts])
    axes.set_xlabel("microseconds, median and quartiles (left is better), logarithmic", fontsize=9)
    figure.suptitle("The parts, each alone", fontsize=11)
    _save(figure, folder, "micro.png")
    return [Picture("micro.png", "Microseconds that each part takes alone", "micro")]


def draw_all(doc: Doc, folder: Path) -> list[Picture]:
    """Draws what the document has figures for, and says what was drawn."""
    pictures = [*_targets(doc, folder), *_peers(doc, folder)]
    cells = cells_of(doc["rows"])
    if cells:
        pictures += [_kept(cells, folder), _throughput(cells, folder)]
    return [*pictures, *_micro(doc, folder)]
