"""Which conditions a package has, and what it is with one of them turned round.

A *condition* is whatever decides: the test of an ``if``, ``while``, ``assert``, ternary or comprehension,
every operand of ``and``/``or``, every comparison and every ``not`` wherever it stands, what is asked of each
element inside ``any``/``all``, what a function annotated ``-> bool`` returns. Each is negated, always false,
and always true (which leaves out an operand). Besides, every ``<``, ``<=``, ``>``, ``>=`` moves by one, every
``min`` and ``max`` becomes the other, and every statement that does something is left out.
"""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

__all__ = ("Mutant", "functions_of", "modules_of", "mutants_of")

_MOVED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_SWAPPED = {"min": "max", "max": "min"}
_TESTS: dict[type[ast.AST], str] = {
    ast.If: "test",
    ast.While: "test",
    ast.IfExp: "test",
    ast.Assert: "test",
    ast.comprehension: "ifs",
    ast.match_case: "guard",
    ast.BoolOp: "values",
}

_DOES = (ast.Assign, ast.AugAssign, ast.Delete, ast.Raise, ast.Return, ast.Break, ast.Continue)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Mutant(NamedTuple):
    """One thing in one function that is otherwise; `times` counts equal texts of one function."""

    module: str
    function: str
    line: int
    was: str
    now: str
    times: int
    code: CodeType

    @property
    def name(self) -> tuple[str, int]:
        """The function's name and first line, as `functions_of` has it."""
        return self.code.co_name, self.code.co_firstlineno

    @property
    def place(self) -> str:
        """Its name in the list of survivors; a line number would change with every edit above it."""
        again = f" (no. {self.times})" if self.times > 1 else ""
        return f"{self.module} {self.function}: {self.was} -> {self.now}{again}"


class _Slot(NamedTuple):
    """Where an expression hangs in the tree."""

    parent: ast.AST
    field: str
    position: int | None

    def get(self) -> Any:
        found = getattr(self.parent, self.field)
        return found if self.position is None else found[self.position]

    def put(self, node: ast.AST) -> None:
        if self.position is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.position] = node


def modules_of(package: str) -> list[ModuleType]:
    """The package and its modules, imported."""
    root = importlib.import_module(package)
    names = sorted(path.stem for path in Path(_path(root)).parent.glob("*.py"))
    return [root if name == "__init__" else importlib.import_module(f"{package}.{name}") for name in names]


def _path(module: ModuleType) -> str:
    assert module.__file__ is not None, module
    return module.__file__


def functions_of(module: ModuleType) -> dict[tuple[str, int], FunctionType]:
    """The functions and methods that a module defines, by name and first line."""
    found: dict[tuple[str, int], FunctionType] = {}
    waiting: list[object] = list(vars(module).values())
    seen: set[int] = set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, FunctionType):
            if thing.__code__.co_filename == module.__file__:
                found[thing.__code__.co_name, thing.__code__.co_firstlineno] = thing
            waiting.append(getattr(thing, "__wrapped__", None))
        elif isinstance(thing, type) and thing.__module__ == module.__name__:
            waiting.extend(vars(thing).values())
        elif isinstance(thing, property):
            waiting.extend((thing.fget, thing.fset, thing.fdel))
        elif isinstance(thing, (classmethod, staticmethod)):
            waiting.append(thing.__func__)
    return found


def mutants_of(module: ModuleType) -> list[Mutant]:
    """Every mutant of a module, in the order of its text.

    Raises:
        ValueError: a condition outside of any function, which could not be replaced in a loaded module.
    """
    path = _path(module)
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    name = Path(path).name
    deciding = set(_deciding(tree))
    places: Counter[tuple[str, str, str]] = Counter()
    found: list[Mutant] = []
    for function, owner, slot in _slots(tree, "", None):
        old = slot.get()
        news = [*_left_out(slot, old), *_turned(old, old in deciding, isinstance(slot.parent, ast.While))]
        for new in news:
            if function is None:
                raise ValueError(
                    f"{name}:{old.lineno}: a condition outside of any function; move it into one"
                )
            was, now = ast.unparse(old), ast.unparse(new)
            if was == now:  # `while True`, always true
                continue
            places[owner, was, now] += 1
            slot.put(ast.copy_location(new, old))
            code = _code(compile(ast.fix_missing_locations(tree), path, "exec"), function)
            slot.put(old)
            found.append(Mutant(name, owner, old.lineno, was, now, places[owner, was, now], code))
    return found


def _deciding(tree: ast.AST) -> Iterator[ast.AST]:
    """The conditions."""
    denied: set[ast.AST] = set()  # `not a < b` is one condition
    for node in ast.walk(tree):
        test = getattr(node, _TESTS.get(type(node), ""), None)
        yield from test if isinstance(test, list) else [test] if test is not None else []
        if isinstance(node, ast.Compare) and node not in denied:
            yield node
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            denied.add(node.operand)
            yield node
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("any", "all")
        ):
            yield from (each.elt for each in node.args if isinstance(each, ast.GeneratorExp))
        elif isinstance(node, Function) and isinstance(node.returns, ast.Name) and node.returns.id == "bool":
            returns = (inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return))
            yield from (value for value in returns if value and not isinstance(value, ast.Constant))


def _turned(node: ast.expr, decides: bool, loops: bool) -> Iterator[ast.expr]:
    """The other forms of an expression."""
    if decides:
        denied = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        yield node.operand if denied else ast.UnaryOp(ast.Not(), node)  # type: ignore[attr-defined]
        yield ast.Constant(False)
        if not loops:  # it would show no more than that somebody notices a loop without end
            yield ast.Constant(True)
    if isinstance(node, ast.Compare):
        for k, operator in enumerate(node.ops):
            moved = _MOVED.get(type(operator))
            if moved is not None:
                yield ast.Compare(node.left, [*node.ops[:k], moved(), *node.ops[k + 1 :]], node.comparators)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _SWAPPED:
        yield ast.Call(ast.Name(_SWAPPED[node.func.id], ast.Load()), node.args, node.keywords)


def _left_out(slot: _Slot, node: ast.AST) -> Iterator[ast.Pass]:
    """A statement without its effect. Without the `return` that is its last, a function ends all the same."""
    called = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
    last = isinstance(slot.parent, Function) and node is slot.parent.body[-1]
    if called or isinstance(node, _DOES) and not (last and isinstance(node, ast.Return)):
        yield ast.Pass()


def _slots(
    node: ast.AST, owner: str, function: Function | None
) -> Iterator[tuple[Function | None, str, _Slot]]:
    """Every expression and statement, with the outermost function that it stands in, and its dotted name."""
    for field, value in ast.iter_fields(node):
        children = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        for position, child in children:
            if isinstance(child, ast.expr) or (function is not None and isinstance(child, ast.stmt)):
                yield function, owner, _Slot(node, field, position)
            inner, name = function, owner
            if function is None and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{owner}.{child.name}".lstrip(".")
                inner = None if isinstance(child, ast.ClassDef) else child
            if isinstance(child, ast.AST):
                yield from _slots(child, name, inner)


def _code(module: CodeType, function: Function) -> CodeType:
    """The code of a function in that of its module."""
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    waiting = [module]
    while waiting:
        code = waiting.pop()
        if (code.co_name, code.co_firstlineno) == (function.name, first):
            return code
        waiting.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))
    raise AssertionError(f"no code for {function.name} at line {first}")
