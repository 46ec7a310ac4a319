"""The laws of the tree: each runs over the project's files, and over something bad to show it can fail."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import laws
from tests.law_of_sets import set_iteration

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
GIVEN = ROOT / "tests" / "inputs"
MADE_BY_TOOLS = frozenset("build dist node_modules __pycache__ checkpoints".split())
MARKER = "cutline.json"
Law = Callable[[str], list[str]]


def _files(top: Path) -> Iterator[Path]:
    """The project's own files below ``top``; links are not followed, so each file comes once.

    A storage folder, as a demo or a program tried in the checkout leaves it, is not the project's.
    """
    if (top / MARKER).exists():
        return
    for path in sorted(top.iterdir()):
        if path.is_symlink() or path.name in MADE_BY_TOOLS or path.name.endswith(".egg-info"):
            continue
        if path.is_dir():
            if not path.name.startswith(".") or path.name == ".ci":
                yield from _files(path)
        else:
            yield path


def _below(*folders: str) -> list[Path]:
    return [path for path in _files(ROOT) if path.relative_to(ROOT).parts[0] in folders]


def _python(*folders: str) -> list[Path]:
    # Given inputs keep the form they came in.
    return [path for path in _below(*folders) if path.suffix == ".py" and path.parent != GIVEN]


CODE = (*laws.ROOMS, "cutline", "bench")
TEXT_SUFFIXES = frozenset(
    ("", ".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".proto", ".sql", ".sh", ".cfg")
)
TEXTS = [path for path in _files(ROOT) if path.suffix in TEXT_SUFFIXES and path.name != "LICENSE"]

# (law, files it holds for, a text that breaks it)
LAWS: list[tuple[Law, list[Path], str]] = [
    (laws.parent_imports, _python(*CODE), "from ..storage import Store"),
    (laws.bare_rooms, _python(*CODE, "tests"), "import storage"),
    (laws.impure_imports, _python("barrier"), "import time"),
    (laws.impure_calls, _python("barrier"), "print('captured')"),
    (set_iteration, _python("barrier"), "for peer in {1, 2}: send(peer)"),
    (laws.long_functions, _python(*CODE, "tests"), "def f():\n" + "    x = 1\n" * (laws.BODY_LINES + 1)),
    (laws.long_module, _python(*CODE, "tests"), "x = 1\n" * (laws.MODULE_LINES + 1)),
    (laws.no_docstring, _python(*CODE, "tests"), "x = 1"),
    (laws.no_all, _python(*CODE), "def f(): ..."),
    (laws.swallowed_errors, _python(*CODE, "tests"), "try: f()\nexcept OSError: pass"),
    (laws.vague_names, _python(*CODE), "class SnapshotManager: ..."),
    (laws.unfinished, TEXTS, "# TO" + "DO: the other half"),
    (laws.machine_paths, TEXTS, "open('" + "/ho" + "me/ann/checkpoints')"),
    *(
        (functools.partial(laws.upward_imports, room=room), _python(room), f"from cutline.{above} import X")
        for room, above in zip(laws.ROOMS, ("storage", "barrier", "coordinator", "start"), strict=True)
    ),
]


def _law_name(law: Law) -> str:
    inner = law.func if isinstance(law, functools.partial) else law
    room = law.keywords["room"] if isinstance(law, functools.partial) else ""
    return f"{inner.__name__} {room}".strip()


def test_a_storage_folder_in_the_checkout_is_not_the_projects(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("x = 1")
    (tmp_path / "tried" / "corpus").mkdir(parents=True)
    (tmp_path / "tried" / "corpus" / "garbage.py").write_bytes(b"\x00\x8b")
    assert len(list(_files(tmp_path))) == 2
    (tmp_path / "tried" / MARKER).write_text("{}")
    assert [path.name for path in _files(tmp_path)] == ["own.py"]


@pytest.mark.parametrize(("law", "files", "bad"), LAWS, ids=[_law_name(law) for law, _, _ in LAWS])
def test_the_law_holds_and_can_fail(law: Law, files: list[Path], bad: str) -> None:
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in files}
    faults = [f"{name}:{fault}" for name, text in texts.items() for fault in law(text)]
    assert not faults, "\n" + "\n".join(faults)
    assert law(bad), "this text must break the law"


# More ways to break a law than the one above; each is a way somebody would really write it.
BROKEN: list[tuple[Law, str]] = [
    (laws.bare_rooms, "from barrier.channel import Outgoing"),
    (laws.bare_rooms, "import importlib\nimportlib.import_module('participant.runner')"),
    (laws.parent_imports, "def f():\n    from .. import barrier"),
    (laws.impure_imports, "from os import urandom"),
    (laws.impure_imports, "import numpy as np"),
    (laws.impure_calls, "order = hash(name)"),
    (laws.impure_calls, "open('x').read()"),
    (
        laws.long_functions,
        "class A:\n async def f(self):\n  '''Doc.'''\n" + "  x = 1\n" * (laws.BODY_LINES + 1),
    ),
    (laws.no_all, "__all__ = ['f']\ndef f(): ..."),
    (laws.no_all, "__all__ = ('f', 'g')\ndef f(): ..."),
    (laws.swallowed_errors, "try: f()\nexcept: ..."),
    (laws.swallowed_errors, "try: f()\nexcept (KeyError, OSError):\n    'well'\n    pass"),
    (laws.unfinished, "x = 1  # FIX" + "ME later"),
    (laws.machine_paths, "see " + "/ro" + "ot/notes"),
    (functools.partial(laws.upward_imports, room="barrier"), "import cutline.participant.runner"),
    (functools.partial(laws.upward_imports, room="barrier"), "from cutline import storage"),
    (functools.partial(laws.upward_imports, room="storage"), "import cutline"),
    (functools.partial(laws.upward_imports, room="storage"), "from cutline.storage.blobs import BlobStore"),
    (
        functools.partial(laws.upward_imports, room="participant"),
        "def f():\n    from cutline.coordinator import x",
    ),
    (
        functools.partial(laws.upward_imports, room="storage"),
        "from importlib import import_module as m\n"
        "import importlib\nimportlib.import_module('cutline.barrier')",
    ),
    (set_iteration, "names = set(peers)\nfor name in names: send(name)"),
    (set_iteration, "def f(ids: frozenset[int]):\n    return [x for x in ids]"),
    (set_iteration, "class A:\n    ids: set[int]\n    def f(self):\n        return tuple(self.ids)"),
    (
        set_iteration,
        "class A:\n    def __init__(self):\n        self.ids = set()\n    def f(self):\n"
        "        return {x: 1 for x in self.ids}",
    ),
    (set_iteration, "for x in a.keys() - b.keys(): send(x)"),
    (set_iteration, "for x in held.union(late): send(x)"),
    (set_iteration, "def f():\n    waiting: set[str] | None = None\n    yield from waiting or ()"),
    (set_iteration, "def f(by_id: dict[int, set[str]]):\n    for name in by_id[3]: send(name)"),
    (set_iteration, "def late() -> set[int]: ...\nfirst = next(iter(late()))"),
    (set_iteration, "some = {1, 2}\nx = some.pop()"),
    (set_iteration, "some = {1, 2}\nx = max(some, key=f)"),
    (set_iteration, "some = {1, 2}\nx = [*some, 3]"),
]


@pytest.mark.parametrize(
    ("law", "bad"), BROKEN, ids=[f"{_law_name(law)} {n}" for n, (law, _) in enumerate(BROKEN)]
)
def test_the_law_sees(law: Law, bad: str) -> None:
    assert law(bad)


ALLOWED: list[tuple[Law, str]] = [
    (laws.bare_rooms, "from cutline.storage import Store\nfrom .storage_url import X\nimport storages"),
    (
        laws.impure_imports,
        "from collections.abc import Mapping\nfrom cutline.errors import Misuse\nfrom . import wire",
    ),
    (
        laws.no_all,
        "__all__ = ('f', 'g', 'H')\ntry:\n    from x import f\nexcept ImportError:\n    f = None\n"
        "g: int = 1\nclass H: ...",
    ),
    (laws.swallowed_errors, "try: f()\nexcept OSError: return_code = 1"),
    (laws.machine_paths, "file:///srv/home/x, docs/home/x, https://example.org/home/x"),
    (
        functools.partial(laws.upward_imports, room="participant"),
        "from cutline.storage import Store\n"
        "from cutline import errors\nfrom . import handle\nfrom .capture import Capturer\nimport numpy",
    ),
    (set_iteration, "names = sorted(set(peers))\nfor name in names: send(name)"),
    (
        set_iteration,
        "ids = {1, 2}\nn = len(ids), sum(x for x in ids), 3 in ids, {x + 1 for x in ids}, {*ids, 4}",
    ),
    (set_iteration, "def f(ids: set[int]):\n    for x in sorted(list(ids)): send(x)"),
    (set_iteration, "def f(ids: list[int]): return [x for x in ids]\ndef g(ids: set[int]): return len(ids)"),
    (set_iteration, "waiting: dict[str, int] = {}\nfor x in waiting: send(x)\nlast = [1].pop()"),
]


@pytest.mark.parametrize(
    ("law", "good"), ALLOWED, ids=[f"{_law_name(law)} {n}" for n, (law, _) in enumerate(ALLOWED)]
)
def test_the_law_lets_pass(law: Law, good: str) -> None:
    assert law(good) == []


BANNED: dict[str, dict[str, str]] = tomllib.loads(
    (ROOT / "barrier" / "ruff.toml").read_text(encoding="utf-8")
)["lint"]["flake8-tidy-imports"]["banned-api"]


@pytest.mark.parametrize(
    ("line", "rule"),
    [(f"import {name}", "TID251") for name in BANNED] + [("from ..storage import Store", "TID252")],
)
def test_barrier_has_a_linter_of_its_own(line: str, rule: str) -> None:
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format=concise"]
    command = [*ruff, "--stdin-filename", "barrier/some_module.py", "-"]
    done = subprocess.run(command, input=f"{line}\n", cwd=ROOT, capture_output=True, text=True)
    assert rule in done.stdout


def test_every_ban_has_its_reason() -> None:
    assert [name for name, ban in BANNED.items() if len(ban.get("msg", "")) < 20] == []


def _packaging_faults(root: Path) -> list[str]:
    """Where pyproject.toml, the folders and the links disagree; otherwise only a wheel would show it."""
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    table = project["tool"]["setuptools"]
    faults = []
    mapping = {f"cutline.{room}": room for room in laws.ROOMS}
    if table["package-dir"] != mapping:
        faults.append(f"package-dir is {table['package-dir']}, the rooms are {mapping}")
    folders = {path.parent.name for path in root.glob("*/__init__.py")}
    packages = {"cutline" if name == "cutline" else f"cutline.{name}" for name in folders}
    if set(table["packages"]) != packages:
        faults.append(
            f"packages are {sorted(table['packages'])}, folders with __init__.py {sorted(packages)}"
        )
    for room in laws.ROOMS:
        link = root / "cutline" / room
        if not link.is_symlink() or link.resolve() != (root / room).resolve():
            faults.append(f"cutline/{room} is no link to ../{room}")
        elif link.readlink().is_absolute():
            faults.append(f"cutline/{room} is an absolute link")
        inner = {path.name for path in (root / room).iterdir() if path.is_dir() and path.name[0] != "."}
        faults += [
            f"{room}/{name}: would be missing from the wheel" for name in sorted(inner - MADE_BY_TOOLS)
        ]
    return faults


def test_packages_folders_and_links_agree() -> None:
    assert _packaging_faults(ROOT) == []


def _copy_of_the_tree(target: Path) -> Path:
    """What a build needs, in a place of its own: what an earlier build left behind gets into wheels."""
    target.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target / name)
    for folder in (*laws.ROOMS, "cutline"):
        shutil.copytree(
            ROOT / folder, target / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    return target


def _drop_mapping(root: Path) -> None:
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    (root / "pyproject.toml").write_text(
        text.replace('"cutline.storage" = "storage"\n', ""), encoding="utf-8"
    )


def _unlist(root: Path) -> None:
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    (root / "pyproject.toml").write_text(text.replace(', "cutline.storage"', ""), encoding="utf-8")


def _turn_link(root: Path) -> None:
    (root / "cutline" / "storage").unlink()
    (root / "cutline" / "storage").symlink_to("../barrier")


def _copy_for_link(root: Path) -> None:
    (root / "cutline" / "storage").unlink()
    shutil.copytree(root / "storage", root / "cutline" / "storage")


def _add_sub_package(root: Path) -> None:
    (root / "storage" / "cloud").mkdir()


def _add_package(root: Path) -> None:
    (root / "clock").mkdir()
    (root / "clock" / "__init__.py").touch()


@pytest.mark.parametrize(
    "damage", [_drop_mapping, _unlist, _turn_link, _copy_for_link, _add_sub_package, _add_package]
)
def test_packaging_faults_are_seen(damage: Callable[[Path], None], tmp_path: Path) -> None:
    root = _copy_of_the_tree(tmp_path / "tree")
    assert _packaging_faults(root) == []
    damage(root)
    assert len(_packaging_faults(root)) == 1


def test_the_wheel_holds_what_the_tree_holds(tmp_path: Path) -> None:
    root = _copy_of_the_tree(tmp_path / "tree")
    wheel_here = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-qq",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        ".",
        ".",
    ]
    done = subprocess.run(wheel_here, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = root.glob("cutline-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        built = {name for name in archive.namelist() if ".dist-info/" not in name}
    tree = {path.relative_to(ROOT) for path in _below(*laws.ROOMS, "cutline") if path.name != "ruff.toml"}
    assert built == {(path if path.parts[0] == "cutline" else "cutline" / path).as_posix() for path in tree}


_ASKED = re.compile(r"""environ(?:\.get\(|\[)["'](CUTLINE_\w+)["']""")
_TOLD = re.compile(r"\b(CUTLINE_\w+)=\S* (?:\$\(BIN\)/python -m pytest|\\)")


def test_what_the_makefile_tells_tests_reaches_them() -> None:
    """conftest takes the user's variables away before any module is read: all but those of its prefix."""
    asked = [
        (path.name, name)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in _ASKED.findall(path.read_text())
    ]
    told = [("Makefile", name) for name in _TOLD.findall((ROOT / "Makefile").read_text())]
    assert len(told) > 5 and len(asked) > 5
    lost = [f"{place}: {name}" for place, name in (*asked, *told) if not name.startswith("CUTLINE_TEST_")]
    assert not lost, f"tests never see {', '.join(lost)}"
