"""The law against iterating over sets, in its own module because it has to guess what is a set.

Sets of texts, tuples or frozen values iterate in an order that differs from one interpreter to the next, so
one loop over a set is enough to make a seed irreproducible. Types are not at hand; the law takes for a set

* a set display or comprehension, ``set(...)``, ``frozenset(...)``, set algebra of these or of ``.keys()``;
* a name that its function binds to one of these or annotates as a set;
* an attribute, whatever its owner, that the module annotates as a set or binds to one;
* an element of what the module annotates as ``dict[..., set[...]]`` and the like;
* the result of a function that the module annotates to return a set.

Uses whose result has no order are free: ``sorted``, ``len``, ``sum``, ``any``, ``min`` and ``max`` without a
key, ``in``, building another set.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from tests.laws import last_name

__all__ = ("set_iteration",)

_SET_TYPES = frozenset("set frozenset Set FrozenSet AbstractSet MutableSet".split())
_SET_ALGEBRA = frozenset("union difference intersection symmetric_difference".split())
_LOOKUPS = frozenset("get pop setdefault".split())
_ORDER_FREE = frozenset("sorted len sum any all min max set frozenset bool".split())
_ORDER_KEEPING = frozenset("list tuple iter enumerate zip map filter dict fromkeys deque join extend".split())

Function = ast.FunctionDef | ast.AsyncFunctionDef


def set_iteration(text: str) -> list[str]:
    """Lines that let the order of a set decide something."""
    tree = ast.parse(text)
    known = _Known(tree)
    found: set[int] = set()
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    for nodes in (list(_own_nodes(tree)), *(list(ast.walk(function)) for function in functions)):
        names = known.names_in(nodes)
        free = _order_free(nodes)
        for node in nodes:
            found.update(part.lineno for part in _iterated(node, free) if known.is_set(part, names))
    return [f"{line}: the order of a set decides here: sort it" for line in sorted(found)]


def _own_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes outside every function."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, Function):
            yield node
            yield from _own_nodes(node)


def _annotated_set(annotation: ast.expr | None) -> bool:
    """``set[X]`` or ``set[X] | None``."""
    if isinstance(annotation, ast.BinOp):
        return _annotated_set(annotation.left) or _annotated_set(annotation.right)
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    return last_name(annotation) in _SET_TYPES


def _annotated_holder(annotation: ast.expr | None) -> bool:
    """``dict[K, set[X]]``: what it holds are sets."""
    if not isinstance(annotation, ast.Subscript):
        return False
    inside = annotation.slice
    return _annotated_set(inside.elts[-1] if isinstance(inside, ast.Tuple) and inside.elts else inside)


def _only_sets(found: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Names found to be sets and nowhere found to be something else."""
    by_kind: dict[str, set[str]] = {"set": set(), "other": set(), "": set()}
    for name, kind in found:
        by_kind[kind].add(name)
    return frozenset(by_kind["set"] - by_kind["other"])


def _is_other(value: ast.expr) -> bool:
    """Values that are evidently no sets; None is not among them, it stands in for a set still to come."""
    if isinstance(value, ast.Call):
        return last_name(value.func) in ("sorted", "list", "dict", "tuple", "deque")
    if isinstance(value, ast.Constant):
        return value.value is not None
    return isinstance(value, (ast.List, ast.Dict, ast.Tuple, ast.ListComp, ast.DictComp))


class _Known:
    """What a module says about which of its names are sets, or hold sets.

    A name or attribute that is a set in one place and something else in another is left alone.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.attributes: frozenset[str] = frozenset()
        self.holders: set[str] = set()
        self.returning: set[str] = set()
        nodes = list(ast.walk(tree))
        for node in nodes:
            if isinstance(node, Function) and _annotated_set(node.returns):
                self.returning.add(node.name)
            if isinstance(node, ast.AnnAssign) and _annotated_holder(node.annotation):
                self.holders.add(last_name(node.target))
            if isinstance(node, ast.arg) and _annotated_holder(node.annotation):
                self.holders.add(node.arg)
        fields = {node for owner in nodes if isinstance(owner, ast.ClassDef) for node in owner.body}
        for _ in range(2):  # the second round knows the attributes that the first has found
            found = [
                (last_name(target), kind)
                for node in nodes
                for target, kind in self._bindings(node, frozenset())
                if isinstance(target, ast.Attribute) or node in fields
            ]
            self.attributes = _only_sets(found)

    def names_in(self, nodes: list[ast.AST]) -> frozenset[str]:
        """Local names that are sets."""
        found: list[tuple[str, str]] = []
        for node in nodes:
            if isinstance(node, ast.arg):
                found.append((node.arg, "set" if _annotated_set(node.annotation) else "other"))
            for target, kind in self._bindings(node, _only_sets(found)):
                if isinstance(target, ast.Name):
                    found.append((target.id, kind))
        return _only_sets(found)

    def _bindings(self, node: ast.AST, names: frozenset[str]) -> Iterator[tuple[ast.expr, str]]:
        """What ``node`` binds, and to what kind of value: "set", "other" or "" where nothing tells."""
        if isinstance(node, ast.AnnAssign):
            yield node.target, "set" if _annotated_set(node.annotation) else "other"
        elif isinstance(node, (ast.Assign, ast.NamedExpr)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            kind = "set" if self.is_set(node.value, names) else "other" if _is_other(node.value) else ""
            for target in targets:
                yield target, kind

    def is_set(self, node: ast.expr, names: frozenset[str]) -> bool:
        """Whether ``node`` is, as far as can be seen, a set."""
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name):
                return name in names
            case ast.Attribute(attr=name):
                return name in self.attributes
            case ast.Call():
                return self._call_gives_set(node, names)
            case ast.Subscript(value=holder):
                return last_name(holder) in self.holders
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.BitXor() | ast.Sub(), right=right):
                return any(self.is_set(side, names) or _is_keys(side) for side in (left, right))
            case ast.IfExp(body=left, orelse=right):
                return self.is_set(left, names) or self.is_set(right, names)
            case ast.BoolOp(values=values):
                return any(self.is_set(value, names) for value in values)
            case ast.NamedExpr(value=value):
                return self.is_set(value, names)
        return False

    def _call_gives_set(self, node: ast.Call, names: frozenset[str]) -> bool:
        called = last_name(node.func)
        if isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if called in _LOOKUPS and last_name(owner) in self.holders:
                return True
            if called == "copy" and self.is_set(owner, names):
                return True
            return called in _SET_ALGEBRA or called in self.returning
        return called in ("set", "frozenset") or called in self.returning


def _is_keys(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys"


def _order_free(nodes: list[ast.AST]) -> frozenset[ast.expr]:
    """Expressions that stand where order does not matter: in such a call, or in a set display."""
    free: set[ast.expr] = set()
    for node in nodes:
        if isinstance(node, ast.Set):
            free.update(node.elts)
        elif isinstance(node, ast.Call) and last_name(node.func) in _ORDER_FREE and not _keyed_choice(node):
            free.update(node.args)
    return frozenset(free)


def _keyed_choice(node: ast.Call) -> bool:
    """``min`` or ``max`` with a key: among equals the order decides."""
    return last_name(node.func) in ("min", "max") and bool(node.keywords)


def _iterated(node: ast.AST, free: frozenset[ast.expr]) -> Iterator[ast.expr]:
    """Expressions whose order ``node`` lets through."""
    match node:
        case ast.For(iter=iterated) | ast.AsyncFor(iter=iterated) | ast.YieldFrom(value=iterated):
            yield iterated
        case ast.Starred(value=iterated, ctx=ast.Load()):
            if node not in free:
                yield iterated
        case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
            if node not in free:
                yield from (part.iter for part in node.generators)
        case ast.Call(func=func, args=arguments):
            called = last_name(func)
            if node not in free and (called in _ORDER_KEEPING or _keyed_choice(node)):
                yield from arguments
            if called == "pop" and isinstance(func, ast.Attribute) and not arguments:
                yield func.value
