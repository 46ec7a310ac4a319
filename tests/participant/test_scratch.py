"""Folders of processes that were killed go; those of the living stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutline.participant.addresses import reserve
from cutline.participant.scratch import (
    LINK,
    RUN,
    common_folder,
    hold,
    leave_common,
    let_go,
    make_folder,
    sweep,
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files that nobody else sweeps."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


class Other:
    """Another process that needs folders."""

    def __init__(self, line: str, temporary: Path) -> None:
        program = f"from cutline.participant.scratch import *\nprint({line}, flush=True)\ninput()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def others(temporary: Path) -> Iterator[list[Other]]:
    """Processes to be ended."""
    made: list[Other] = []
    yield made
    for each in made:
        each.kill()


def test_what_a_killed_process_has_left_is_removed_and_what_a_living_one_needs_is_not(
    temporary: Path, others: list[Other]
) -> None:
    others += [Other("make_folder(RUN)", temporary), Other("make_folder(LINK)", temporary)]
    run, link = others[0].said, others[1].said
    Path(run, "flight").write_text("recorded")
    assert sweep() == []
    others[0].kill()
    assert sweep() == [run]
    assert not Path(run).exists() and Path(link).exists()
    others[1].kill()
    assert sweep() == [link]
    assert list(temporary.iterdir()) == []


def test_a_folder_stays_as_long_as_anybody_needs_it(temporary: Path, others: list[Other]) -> None:
    others += [Other("make_folder(RUN)", temporary)]
    folder = others[0].said
    hold(folder)
    hold(folder)
    others[0].kill()
    assert sweep() == []
    let_go(folder, remove=False)
    assert sweep() == [folder]


def test_this_process_keeps_its_own_until_it_lets_go(temporary: Path) -> None:
    folder = make_folder(LINK)
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert sweep() == []
    let_go(folder, remove=True)
    assert list(temporary.iterdir()) == []
    let_go(folder, remove=True)


def test_folders_that_are_not_ours_to_judge_stay(temporary: Path) -> None:
    being_made = temporary / f"{RUN}new"
    being_made.mkdir()
    other = temporary / "somebody-elses"
    other.mkdir()
    (other / "held").touch()
    link = temporary / f"{LINK}elsewhere"
    link.symlink_to(other)
    assert sweep() == []
    assert {each.name for each in temporary.iterdir()} == {being_made.name, other.name, link.name}
    # One without the file is held by whoever made it, as well as can be.
    hold(str(being_made))
    let_go(str(being_made), remove=False)
    assert being_made.exists()


def test_a_lock_in_somebody_elses_name_is_not_followed(temporary: Path) -> None:
    target = temporary / "target"
    target.touch()
    folder = temporary / f"{RUN}x"
    folder.mkdir()
    (folder / "held").symlink_to(target)
    assert sweep() == []
    assert folder.exists()


def test_an_address_that_is_given_back_takes_its_folder_along(temporary: Path) -> None:
    reservation = reserve("unix:")
    (folder,) = temporary.iterdir()
    assert reservation.address == f"unix:{folder}/socket"
    assert sweep() == []
    reservation.release()
    assert list(temporary.iterdir()) == []


def test_processes_meet_in_a_folder_and_the_last_one_removes_it(temporary: Path, others: list[Other]) -> None:
    folder = common_folder("name")
    assert common_folder("name") == folder and Path(folder).stat().st_mode & 0o777 == 0o700
    others += [Other("common_folder('name')", temporary), Other("common_folder('another')", temporary)]
    assert others[0].said == folder and others[1].said != folder
    leave_common(folder)
    assert Path(folder).exists() and sweep() == []
    assert common_folder("name") == folder
    others[0].kill()
    leave_common(folder)
    assert not Path(folder).exists()
    others[1].kill()
    assert sweep() == [others[1].said]


def test_a_folder_that_others_could_look_into_is_not_trusted(temporary: Path) -> None:
    folder = Path(common_folder("name"))
    leave_common(str(folder))
    folder.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="not this user's alone"):
        common_folder("name")
    folder.rmdir()
    (temporary / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(temporary / "elsewhere")
    with pytest.raises(OSError):
        common_folder("name")
    assert list((temporary / "elsewhere").iterdir()) == []
