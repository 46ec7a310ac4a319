"""The tool that counts which turned conditions the tests notice, on a package of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from .mutants import functions_of, mutants_of
from .reasons import read_reasons

ROOT = Path(__file__).parents[2]
BOUND = 150

# Its known survivor: of two equal numbers either is the larger.
SAMPLE = """
def larger(a, b):
    if a > b:
        return a
    return b


class Names:
    def __init__(self):
        self.seen = []

    @property
    def few(self):
        return len(self.seen) < 3

    @classmethod
    def of(cls, names):
        made = cls()
        for name in names:
            if name:
                made.add(name)
        return made

    def add(self, name) -> bool:
        if name in self.seen:
            return False
        self.seen.append(name)
        return True
"""
TESTS = """
from sample.names import Names, larger


def test_larger():
    assert larger(1, 2) == 2 and larger(2, 1) == 2


def test_names():
    names = Names.of(["a", "", "b"])
    assert names.seen == ["a", "b"] and names.few
    assert not names.add("a") and names.few
    assert names.add("c") and not names.few
"""
SURVIVOR = "names.py larger: a > b -> a >= b"
REASON = f"{SURVIVOR}\n    equal numbers are the same number\n"


def module_of(folder: Path, text: str) -> ModuleType:
    path = folder / "names.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("names", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- which mutants there are ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("if a: pass", ["a -> not a", "a -> False", "a -> True"]),
        ("assert a", ["a -> not a", "a -> False", "a -> True"]),
        ("return 1 if a else 2", ["a -> not a", "a -> False", "a -> True"]),
        ("return [x for x in a if x]", ["x -> not x", "x -> False", "x -> True"]),
        ("while a: pass", ["a -> not a", "a -> False"]),
        ("while True: pass", ["True -> not True", "True -> False"]),
        ("return any(x for x in a)", ["x -> not x", "x -> False", "x -> True"]),
        ("return sum(x for x in a)", []),
        ("if not a: pass", ["not a -> a", "not a -> False", "not a -> True"]),
        ("return a == b", ["a == b -> not a == b", "a == b -> False", "a == b -> True"]),
        (
            "if not a < b: pass",
            ["not a < b -> a < b", "not a < b -> False", "not a < b -> True", "a < b -> a <= b"],
        ),
        (
            "b = a and b",
            [
                "b = a and b -> pass",
                *[f"{x} -> {now}" for x in "ab" for now in (f"not {x}", "False", "True")],
            ],
        ),
        ("return min(a, b), max(a)", ["min(a, b) -> max(a, b)", "max(a) -> min(a)"]),
        ("return a", []),
    ],
)
def test_every_form_of_a_condition_is_turned(body: str, expected: list[str], tmp_path: Path) -> None:
    module = module_of(tmp_path, f"def f(a, b):\n    {body}\n")
    assert [f"{mutant.was} -> {mutant.now}" for mutant in mutants_of(module)] == expected


@pytest.mark.parametrize(
    ("was", "now"), [("a < b", "a <= b"), ("a <= b", "a < b"), ("a > b", "a >= b"), ("a >= b", "a > b")]
)
def test_a_boundary_moves_by_one(was: str, now: str, tmp_path: Path) -> None:
    module = module_of(tmp_path, f"def f(a, b):\n    return {was}\n")
    assert [mutant.now for mutant in mutants_of(module)] == [f"not {was}", "False", "True", now]


@pytest.mark.parametrize("body", ["a = b", "a += b", "b(a)", "del a", "raise a", "return b", "yield a"])
def test_a_statement_is_left_out(body: str, tmp_path: Path) -> None:
    module = module_of(tmp_path, f"def f(a, b):\n    if a:\n        {body}\n    return a\n")
    assert [mutant.was for mutant in mutants_of(module) if mutant.now == "pass"] == [body.strip()]


@pytest.mark.parametrize("body", ["return a", "pass", "a: int", "import os", "'text'"])
def test_a_statement_without_an_effect_is_not_left_out(body: str, tmp_path: Path) -> None:
    assert mutants_of(module_of(tmp_path, f"def f(a):\n    {body}\n")) == []


def test_what_a_function_of_truth_returns_is_a_condition(tmp_path: Path) -> None:
    module = module_of(tmp_path, "def f(a) -> bool:\n    if len(a):\n        return a.ok\n    return True\n")
    assert [mutant.was for mutant in mutants_of(module)] == [*["len(a)"] * 3, "return a.ok", *["a.ok"] * 3]


def test_equal_conditions_of_one_function_are_told_apart(tmp_path: Path) -> None:
    module = module_of(tmp_path, "def f(a):\n    if a: pass\n    if a: pass\n")
    places = [mutant.place for mutant in mutants_of(module)]
    assert places[0] == "names.py f: a -> not a" and places[3] == "names.py f: a -> not a (no. 2)"
    assert len(set(places)) == 6


def test_each_mutant_differs_in_its_own_place_alone(tmp_path: Path) -> None:
    module = module_of(tmp_path, "def f(a, b):\n    return [bool(a and b), a < b]\n")
    function = functions_of(module)["f", 1]
    original, found = function.__code__, {}
    for mutant in mutants_of(module):
        function.__code__ = mutant.code
        found[f"{mutant.was} -> {mutant.now}"] = [module.f(0, 0), module.f(1, 1), module.f(1, 2)]
    function.__code__ = original
    truth = [module.f(0, 0), module.f(1, 1), module.f(1, 2)]
    assert truth == [[False, False], [True, False], [True, True]]
    assert found["a -> not a"] == [[False, False], [False, False], [False, True]]
    assert found["b -> True"] == truth
    assert found["a < b -> a <= b"] == [[False, True], [True, True], [True, True]]


def test_a_condition_outside_of_any_function_is_an_error(tmp_path: Path) -> None:
    module = module_of(tmp_path, "LIMIT = 1 if __name__ else 2\n")
    with pytest.raises(ValueError, match=r"names\.py:1: a condition outside of any function"):
        mutants_of(module)


def test_every_mutant_has_its_function_in_the_loaded_module(tmp_path: Path) -> None:
    module = module_of(tmp_path, SAMPLE)
    mutants = mutants_of(module)
    named = "larger Names.__init__ Names.few Names.of Names.add"
    assert list(dict.fromkeys(mutant.function for mutant in mutants)) == named.split()
    assert {mutant.name for mutant in mutants} <= set(functions_of(module))


# -- the list of reasons -------------------------------------------------------------------------------


def test_a_reason_may_take_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "survivors.txt"
    path.write_text("# for the reader\n\nm.py f: a -> b\n    one\n    two\n\nm.py g: a -> b\n    three\n")
    assert read_reasons(path) == {"m.py f: a -> b": "one two", "m.py g: a -> b": "three"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("m.py f: a -> b\n", "no reason for m.py f: a -> b"),
        ("m.py f: a -> b\nm.py g: a -> b\n    three\n", "txt:2: no reason for m.py f: a -> b"),
        ("    one\n", "txt:1: a reason that belongs to no mutant"),
        ("m.py f: a -> b\n    one\nm.py f: a -> b\n    two\n", "txt:3: this mutant is listed twice"),
    ],
)
def test_a_list_with_a_fault_is_refused(text: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "survivors.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=error):
        read_reasons(path)


# -- the whole tool ------------------------------------------------------------------------------------


def mutate(folder: Path, reasons: str, tests: str = TESTS, *options: str) -> tuple[int, list[str]]:
    """Runs the tool over the sample; its exit code and lines."""
    package = folder / "sample"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "names.py").write_text(SAMPLE)
    (folder / "test_sample.py").write_text(tests)
    (folder / "survivors.txt").write_text(reasons)
    command = ["--package", "sample", "--survivors", "survivors.txt", *options, "test_sample.py"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutate", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder)))},
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_a_known_mutant_is_killed_and_a_known_survivor_reported(tmp_path: Path) -> None:
    code, lines = mutate(tmp_path, REASON)
    assert lines == [
        SURVIVOR,
        "    line 3: survived: equal numbers are the same number",
        "killed 19 of 20 (95.0 %)",
    ]
    assert code == 0


def test_all_mutants_are_listed_with_their_killers(tmp_path: Path) -> None:
    code, lines = mutate(tmp_path, "", TESTS, "--only", "names.py", "--all")
    assert lines[:2] == [
        "names.py larger: a > b -> not a > b",
        "    line 3: killed by test_sample.py::test_larger",
    ]
    assert lines[-2] == f"survives without a reason, write a test or give one: {SURVIVOR}"
    assert code == 1


def test_a_reason_for_what_is_killed_is_a_failure(tmp_path: Path) -> None:
    killed = "names.py larger: a > b -> False"
    code, lines = mutate(tmp_path, f"{REASON}{killed}\n    a mistake\n")
    assert lines[-2] == f"has a reason and does not survive, take it off the list: {killed}"
    assert code == 1


def test_too_few_killed_is_a_failure_though_all_survivors_have_reasons(tmp_path: Path) -> None:
    few = [
        f"names.py Names.few: len(self.seen) < 3 -> {now}\n    why not\n"
        for now in ("True", "len(self.seen) <= 3")
    ]
    code, lines = mutate(tmp_path, REASON + "".join(few), TESTS.replace(" and not names.few", ""))
    assert lines[-1] == "killed 17 of 20 (85.0 %)"
    assert code == 1


def test_a_function_that_no_test_calls_survives(tmp_path: Path) -> None:
    tests = TESTS[: TESTS.index("def test_names")]
    code, lines = mutate(tmp_path, REASON, tests)
    assert "names.py Names.add: name in self.seen -> True" in lines
    assert "    line 26: SURVIVED 0 tests that call it" in lines
    assert code == 1


def test_tests_that_fail_anyway_kill_nothing(tmp_path: Path) -> None:
    code, lines = mutate(tmp_path, REASON, TESTS.replace("larger(1, 2) == 2", "larger(1, 2) == 1"))
    assert lines == ["a test fails without any mutant: test_sample.py::test_larger"]
    assert code == 2


def test_tests_that_cannot_be_collected_kill_nothing(tmp_path: Path) -> None:
    code, lines = mutate(tmp_path, REASON, "import no_such_module\n")
    assert lines == ["the tests cannot be collected; run them with pytest"]
    assert code == 2
