"""Golden stories: what the automata do in the situations that everything depends on.

After a change that is meant, the stories are told anew and read again::

    python -m tests.barrier.test_stories --rewrite
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from .story import Story, told

FOLDER = Path(__file__).resolve().parents[1] / "stories"
STORIES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=[path.stem for path in STORIES])
def test_the_story_is_told_as_written(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert told(text) == text, "if this is meant: python -m tests.barrier.test_stories --rewrite"


def test_there_are_stories() -> None:
    assert len(STORIES) >= 6


def test_another_outcome_is_seen() -> None:
    false = "> start A\n> A boundary\n    A captures 1 in full\n"
    assert told(false) == "> start A\n> A boundary\n    nothing\n"


def test_a_word_that_no_story_knows_is_an_error() -> None:
    story = Story()
    story.tell("start A")
    with pytest.raises(KeyError):
        story.tell("A dances")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rewrite", action="store_true", help="write what happens into the stories")
    rewrite = parser.parse_args().rewrite
    changed = 0
    for path in STORIES:
        text = path.read_text(encoding="utf-8")
        if told(text) != text:
            changed += 1
            print(path.name)
            if rewrite:
                path.write_text(told(text), encoding="utf-8")
    return changed > 0 and not rewrite


if __name__ == "__main__":
    sys.exit(main())
