"""``cutline demo --agents``: a team that pays, writes and asks, killed at random; the world must not notice.

The team (`team_cast`) writes a report: it asks a model, searches, pays invoices out of a bank, sends letters,
and a person approves. It is played twice: once undisturbed, and once with a killer (`team_play`). Then what
the dumb service (`team_world`) was sent is compared (`team_judge`): every invoice once, no request more than
the effects' journal explains, one approval, the same report.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .team_judge import Check, figures, judge
from .team_play import Play, Seen, play

__all__ = ("TOPICS", "TeamOptions", "run_team")

TOPICS = ("checkpoint", "participant", "coordinator", "message", "lineage", "effect", "image", "driver")
# Seconds that each of the two runs may take.
LIMIT = 240.0


@dataclass
class TeamOptions:
    """What the command line was given."""

    storage: Path
    deaths: int = 20
    topics: int = len(TOPICS)
    seed: int | None = None
    as_json: bool = False


def run_team(options: TeamOptions) -> int:
    """Plays both; returns the exit status: 0 if everything holds."""
    seed = random.SystemRandom().randrange(1 << 16) if options.seed is None else options.seed
    folder = options.storage.absolute() / f"agents-{time.strftime('%Y%m%d-%H%M%S')}-{seed}"
    topics = TOPICS[: options.topics]
    say = Console(stderr=options.as_json)
    say.print(f"a team writes about {', '.join(topics)}; seed {seed}", highlight=False, soft_wrap=True)
    alone = play(Play(folder / "undisturbed", topics, 0, seed, LIMIT))
    say.print(f"undisturbed: {alone.seconds:.1f} s; now with {options.deaths} kills", highlight=False)
    seen = play(Play(folder / "killed", topics, options.deaths, seed, LIMIT))
    # The undisturbed one must be right itself, or being like it would mean nothing.
    checks = [*judge(alone, 0, alone), *judge(seen, options.deaths, alone)]
    good = all(check.holds for check in checks)
    if options.as_json:
        print(json.dumps(_document(seed, seen, checks, good)))
    else:
        _show(say, seen, checks)
    if good:
        shutil.rmtree(folder)
    else:
        say.print(f"kept: {folder}", markup=False, highlight=False)
    return 0 if good else 1


def _document(seed: int, seen: Seen, checks: list[Check], good: bool) -> dict[str, Any]:
    return {
        "good": good,
        "seed": seed,
        "figures": figures(seen),
        "kills": seen.kills,
        "checks": [{**asdict(check), "holds": check.holds} for check in checks],
    }


def _show(say: Console, seen: Seen, checks: list[Check]) -> None:
    found = figures(seen)
    kills = ", ".join(f"{kind} {times}" for kind, times in sorted(found["kills"].items()))
    say.print(
        f"killed: {kills or 'nobody'}; {found['starts']} starts of the program, {found['seconds']} s; "
        f"{found['unknown']} calls of unknown outcome: {found['asked the world']} found to have happened by "
        f"asking the world, {found['sent again']} sent again with the same key",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(title="what the world says")
    for column in ("check", "found", "wanted", ""):
        table.add_column(column, justify="left" if column == "check" else "right")
    # Those of the undisturbed run are shown if one fails.
    shown = [check for check in checks[: len(checks) // 2] if not check.holds]
    for check in (*shown, *checks[len(checks) // 2 :]):
        holds = check.holds
        found_and_wanted = _short(check.found, holds), _short(check.wanted, holds)
        table.add_row(check.what, *found_and_wanted, "ok" if holds else "NO")
    say.print(table)


def _short(value: Any, holds: bool) -> str:
    """In few words; what is in a list is shown where it is not as it should be."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, list):
        return str(value)
    first = "" if holds or not value else f": {value[0]!s:.80}"
    return f"{len(value) or 'none'}{first}"
