"""The report of a run for people: target beside measured, verdict and interval, and pictures.

It is made from the document alone (`bench.document`), so an old one can be reported again:
``python -m bench --figures bench/results/figures.json --report bench/results``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.bench_same_vs_same import GROUP as NOISE
from bench.matrix import cells_of, is_cell

if TYPE_CHECKING:
    from bench.pictures import Picture

__all__ = ("number", "report_text", "too_noisy", "write_report")

Doc = Mapping[str, Any]

_HEADINGS = {
    "": "Targets",
    "channel": "Beside the channels of others",
    "capture": "Beside the captures of others",
    "store": "Beside the stores of others",
    "overhead": "Beside the checkpoints of stream processors",
    "recovery": "Beside the recovery of others",
}
_RATES = (1, 10)
# At the end of the name of a baseline against itself that was measured after the others.
_AFTER = "_after"

_WHAT = """What each row is, is in [docs/bench.md](../../docs/bench.md). Figures are those of
this machine; what counts are the ratios of figures that were taken in turns in one run."""
_QUICK = """A quick run has smaller sizes and fewer rounds than the targets are meant for: a row that fails
here is to be looked at in a full one (`make bench`)."""
_NOISY = """**No: this machine was too noisy for verdicts.** A baseline measured against itself must
give 1, and its interval left 0.95 to 1.05. A verdict below has a question mark: it is what the samples
give."""
_QUIET = "Yes: a baseline measured against itself gives 1, with an interval inside 0.95 to 1.05."
_UNKNOWN = """Before the other rows it was: a baseline measured against itself gave 1, with an interval inside
0.95 to 1.05. After them this was not measured, so it is not known whether it was quiet at the end."""
_NOTES = "What was measured, where a row's name does not say it:"
_MICRO = "Taken by pytest-benchmark in one process, without a target: where the time of the rows goes."
_MATRIX = """The same actors as participants in Ray actors, and as plain Ray actors; 0, 1 and 10
checkpoints a second are asked for, and as many taken as each side can. The pattern of plain Ray: all hold
what comes until no message is on its way, each saves its own state with `pickle` and `fsync`, and all go on.
*Kept* is the share of a side's own throughput without checkpoints; *ours to plain Ray* is measured against
plain Ray without checkpoints. The last two columns have our messages a second over the pattern's, with as
many checkpoints asked for, and whether they are at least as many."""


def number(value: float | None) -> str:
    """A figure for people: three digits, thousands apart."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if 0 < abs(value) < 0.001:
        return f"{value:.2e}"
    return f"{value:.3g}"


def too_noisy(doc: Doc) -> bool | None:
    """Whether the baseline against itself did not give 1 within 5 %; None if that was not measured."""
    same = [row["verdict"] == "holds" for row in doc["rows"] if row["group"] == NOISE]
    return None if not same else not all(same)


def _seen_at_the_end(doc: Doc) -> bool:
    """Whether each baseline that was measured against itself before other rows was so after them too."""
    same = {row["name"] for row in doc["rows"] if row["group"] == NOISE}
    # Those of a run that was added have its number at their end.
    parts = [name.partition("_run_") for name in same if _AFTER not in name]
    return len(same) == len(doc["rows"]) or all(
        f"{a}{_AFTER}{run}{number}" in same for a, run, number in parts
    )


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"| {' | '.join('---' for _ in head)} |",
        *(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines),
        "",
    ]


def _interval(row: Doc) -> str:
    low, high = row["interval"]
    return f"{number(low)} to {number(high)}"


def _verdict(row: Doc, noisy: bool) -> str:
    if row["verdict"] is None:
        return "no target"
    return f"{row['verdict']}{'?' if noisy else ''}"


def _machine(doc: Doc) -> Iterator[str]:
    machine = doc["machine"]
    before, after = machine["load_before"][0], machine["load"][0]
    minutes = sum(doc["seconds"].values()) / 60
    yield from _table(
        ("machine", ""),
        (
            ("cores", f"{machine['cores']} ({machine['processor']})"),
            ("memory", f"{machine['memory_bytes'] / (1 << 30):.0f} GiB"),
            ("kernel", machine["kernel"]),
            ("Python", machine["python"]),
            ("packages", ", ".join(f"{name} {version}" for name, version in machine["packages"].items())),
            ("load", f"{before:.1f} before, {after:.1f} after"),
            ("run", f"{'quick' if doc['quick'] else 'full'}, {minutes:.0f} minutes of measuring"),
        ),
    )


def _noise(doc: Doc) -> Iterator[str]:
    noisy = too_noisy(doc)
    yield "## Is the machine quiet enough?"
    yield ""
    if noisy is None:
        yield "Not measured (`same_vs_same`), so the verdicts below may be those of noise."
        yield ""
        return
    yield _NOISY if noisy else _QUIET if _seen_at_the_end(doc) else _UNKNOWN
    yield ""
    same = [row for row in doc["rows"] if row["group"] == NOISE]
    yield from _table(
        ("against itself", "measured", "95 % interval", "rounds"),
        (
            (row["name"], number(row["ratio"]), _interval(row), str(len(row["samples"]["ours"])))
            for row in same
        ),
    )


def _rows(rows: Sequence[Doc], noisy: bool) -> Iterator[str]:
    compares = any(row["against"] for row in rows)
    head = ["row", "target", "measured", "95 % interval", "verdict", "ours", "baseline", "unit"]
    lines = []
    for row in rows:
        line = [
            f"`{row['name']}`",
            row["target"] or "-",
            number(row["ratio"]),
            _interval(row),
            _verdict(row, noisy),
            number(row["ours"]),
            number(row["baseline"]),
            row["unit"],
        ]
        lines.append([*line, row["against"]] if compares else line)
    yield from _table([*head, "against"] if compares else head, lines)


def _matrix(doc: Doc, noisy: bool) -> Iterator[str]:
    cells = cells_of(doc["rows"])
    if not cells:
        return
    yield "## Overhead over patterns, actors, messages and states"
    yield ""
    yield _MATRIX
    yield ""
    lines = []
    for cell in cells:
        kept, ray = ({rate: cell.rows.get((what, rate)) for rate in (0, *_RATES)} for what in ("kept", "ray"))
        pattern = [cell.rows.get(("pattern", rate)) for rate in _RATES]

        def each(rows: Iterable[Doc | None], key: str) -> str:
            return " / ".join(number(row[key]) if row is not None else "-" for row in rows)

        lines.append(
            (
                cell.label,
                number(ray[0]["baseline"] if ray[0] is not None else None),
                each(ray.values(), "ratio"),
                each((kept[rate] for rate in _RATES), "ours"),
                each((kept[rate] for rate in _RATES), "baseline"),
                each(pattern, "ratio"),
                " / ".join(_verdict(row, noisy) if row is not None else "-" for row in pattern),
            )
        )
    yield from _table(
        (
            "cell",
            "plain Ray, messages/s",
            "ours to plain Ray, 0 / 1 / 10",
            "ours kept, 1 / 10",
            "pattern kept, 1 / 10",
            "ours to pattern, 1 / 10",
            "at least 1?",
        ),
        lines,
    )


def _micro(doc: Doc) -> Iterator[str]:
    if not doc["micro"]:
        return
    yield "## The parts, each alone"
    yield ""
    yield _MICRO
    yield ""
    yield from _table(
        ("part", "what", "median, us", "quartiles, us", "rounds"),
        (
            (
                f"`{each['name']}`",
                each["what"],
                number(each["median"] * 1e6),
                f"{number(each['q1'] * 1e6)} to {number(each['q3'] * 1e6)}",
                f"{each['rounds']:,}",
            )
            for each in doc["micro"]
        ),
    )


def _notes(doc: Doc) -> Iterator[str]:
    """A line for each row with a note; rows that share one share the line."""
    names: dict[str, list[str]] = {}
    for row in doc["rows"]:
        if row["note"]:
            names.setdefault(row["note"], []).append(f"`{row['name']}`")
    if names:
        yield "## Notes"
        yield ""
        yield _NOTES
        yield ""
        yield from (f"- {', '.join(rows)}: {note}" for note, rows in names.items())
        yield ""


def _named(heading: str, text: str, entries: Sequence[Doc]) -> Iterator[str]:
    if entries:
        yield f"## {heading}"
        yield ""
        yield text
        yield ""
        yield from _table(("what", "why"), ((f"`{each['name']}`", each["reason"]) for each in entries))


def report_text(doc: Doc, pictures: Sequence[Picture], without: str = "") -> str:
    """The report. ``without``: why there are no pictures."""
    noisy = bool(too_noisy(doc))

    def drawn(section: str) -> list[str]:
        found = [each for each in pictures if each.section == section]
        return [text for each in found for text in (f"![{each.shows}]({each.name})", "")]

    lines = [
        "# What the bench measured",
        "",
        f"Written by `make {'bench-quick' if doc['quick'] else 'bench'}`. {_WHAT}",
        "",
        *([_QUICK, ""] if doc["quick"] else []),
        *_machine(doc),
        *([without, ""] if without else []),
        *_noise(doc),
        *_named("Ended with an error", "These measured nothing:", doc["errors"]),
    ]
    groups: dict[str, list[Doc]] = {}
    for row in doc["rows"]:
        if row["group"] != NOISE and not is_cell(row):
            groups.setdefault(row["group"], []).append(row)
    for group in sorted(groups):
        lines += [f"## {_HEADINGS.get(group, group.capitalize())}", ""]
        lines += drawn(group or "targets") + [*_rows(groups[group], noisy)]
    lines += [*_matrix(doc, noisy), *drawn("matrix"), *_micro(doc), *drawn("micro")]
    lines += _notes(doc)
    lines += _named("Missing", "Not measured in this run:", doc["missing"])
    return "\n".join(lines).rstrip() + "\n"


def write_report(doc: Doc, folder: Path) -> list[Path]:
    """Writes report.md and the pictures into a folder that is there; says what was written."""
    pictures: Sequence[Picture] = ()
    without = ""
    try:
        from bench.pictures import draw_all
    except ImportError as error:
        without = f"No pictures: {error}. `pip install 'cutline[bench]'` brings what draws them."
    else:
        pictures = draw_all(doc, folder)
    report = folder / "report.md"
    report.write_text(report_text(doc, pictures, without), encoding="utf-8")
    return [report, *(folder / each.name for each in pictures)]
