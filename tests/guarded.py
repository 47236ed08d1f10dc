"""The declarations ``guarded_by`` of all classes, checked in two ways.

``unguarded`` reads the syntax trees: which methods touch what a lock guards without the lock.
``guard_all`` checks each access while a test runs, also those from other classes.
"""

from __future__ import annotations

import ast
import functools
import importlib
import operator
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import slurm_elastic
from slurm_elastic.base.guards import Guarded

PRODUCT = "slurm_elastic."
ROOT = Path(slurm_elastic.__file__).parent
LOCKS = frozenset({"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"})
DECLARATION = "guarded_by"


class Class(NamedTuple):
    """A class by its syntax tree; ``bases`` are those of its module's tree."""

    module: str
    tree: ast.ClassDef
    imports: Mapping[str, tuple[str, str]]

    @property
    def key(self) -> tuple[str, str]:
        return (self.module, self.tree.name)

    @property
    def bases(self) -> list[tuple[str, str]]:
        named = [b.value if isinstance(b, ast.Subscript) else b for b in self.tree.bases]
        ids = [b.id for b in named if isinstance(b, ast.Name)]
        return [self.imports.get(name, (self.module, name)) for name in ids]

    @property
    def methods(self) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return {m.name: m for m in self.tree.body if isinstance(m, kinds)}


def classes_of(module: str, text: str) -> list[Class]:
    """The classes of a module's text, also those inside of others."""
    tree = ast.parse(text)
    imports = {
        name.asname or name.name: (node.module, name.name)
        for node in tree.body if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }  # fmt: skip
    return [Class(module, n, imports) for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]


@functools.cache
def product_texts() -> Mapping[str, str]:
    """The text of each module, by the module's name."""
    names = {path: ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
             for path in ROOT.rglob("*.py")}  # fmt: skip
    return {name.removesuffix(".__init__"): path.read_text() for path, name in names.items()}


@functools.cache
def product_classes() -> tuple[Class, ...]:
    """The classes of all modules with a lock, and of those with classes that derive from one."""
    texts = dict(product_texts())
    found: list[Class] = []
    words = rf"\b({'|'.join((*LOCKS, 'flock', DECLARATION))})\b"
    while chosen := [name for name, text in texts.items() if re.search(words, text)]:
        new = [one for name in chosen for one in classes_of(name, texts.pop(name))]
        found += new
        words = rf"(?m)^ *class \w+\([^:]*\b({'|'.join(one.tree.name for one in new)})\b"
    return tuple(found)


# locks without a declaration


def undeclared(one: Class) -> Iterator[str]:
    """The locks that a class makes and does not declare, with their lines."""
    own = {
        key.value
        for item in one.tree.body if isinstance(item, ast.Assign | ast.AnnAssign)
        if _names(item) == {DECLARATION} and isinstance(item.value, ast.Dict)
        for key in item.value.keys if isinstance(key, ast.Constant)
    }  # fmt: skip
    for statement in _statements(one.tree):
        makes = any(_makes_lock(node, one.imports) for node in _expressions(statement))
        if makes and own.isdisjoint(_words(statement)):
            yield f"{one.module}.{one.tree.name}, line {statement.lineno}"


def locks_of_modules(module: str, text: str) -> Iterator[str]:
    """Locks that belong to no class: nothing could say what they guard."""
    tree = ast.parse(text)
    imports = {n.names[0].name: ("threading", n.names[0].name) for n in tree.body
               if isinstance(n, ast.ImportFrom) and n.module == "threading"}  # fmt: skip
    for item in tree.body:
        is_statement = not isinstance(item, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if is_statement and any(_makes_lock(node, imports) for node in ast.walk(item)):
            yield f"{module}, line {item.lineno}"


def _statements(tree: ast.ClassDef) -> Iterator[ast.stmt]:
    """The simple statements of a class, without those of classes inside of it."""
    todo = list[ast.AST](tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.ClassDef):
            continue
        if isinstance(node, ast.stmt):
            yield node
        todo += ast.iter_child_nodes(node)


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement, without the statements in its body."""
    todo = [c for c in ast.iter_child_nodes(statement) if not isinstance(c, ast.stmt)]
    while todo:
        node = todo.pop()
        yield node
        todo += [c for c in ast.iter_child_nodes(node) if not isinstance(c, ast.stmt)]


def _names(statement: ast.stmt) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
    return {t.id for t in targets if isinstance(t, ast.Name)}


def _words(statement: ast.stmt) -> set[str]:
    """All names and attributes in a statement."""
    nodes = list(ast.walk(statement))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _makes_lock(node: ast.AST, imports: Mapping[str, tuple[str, str]]) -> bool:
    if isinstance(node, ast.keyword) and node.arg == "default_factory":
        return _is_lock(node.value, imports)
    return isinstance(node, ast.Call) and _is_lock(node.func, imports)


def _is_lock(node: ast.AST, imports: Mapping[str, tuple[str, str]]) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return (node.value.id == "threading" and node.attr in LOCKS) or (
            (node.value.id, node.attr) == ("fcntl", "flock")
        )
    return (
        isinstance(node, ast.Name)
        and imports.get(node.id, ("", ""))[0] == "threading"
        and (imports[node.id][1] in LOCKS)
    )


# accesses without the lock, by the syntax trees


class Use(NamedTuple):
    """One ``self.name`` in a method, and the locks that the method holds there."""

    method: str
    name: str
    line: int
    is_read: bool
    held: frozenset[str]


def uses_of(one: Class) -> list[Use]:
    return [use for name, method in one.methods.items() for use in _uses(name, method)]


def _uses(name: str, method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Use]:
    if not method.args.args:
        return
    this = method.args.args[0].arg
    todo: list[tuple[ast.AST, frozenset[str]]] = [(node, frozenset()) for node in method.body]
    while todo:
        node, held = todo.pop()
        if isinstance(node, ast.Attribute) and _is_name(node.value, this):
            yield Use(name, node.attr, node.lineno, isinstance(node.ctx, ast.Load), held)
        if isinstance(node, ast.With):
            paths = [ast.unparse(item.context_expr).split(".", 1) for item in node.items]
            taken = {path[1] for path in paths if len(path) > 1 and path[0] == this}
            todo += [(item, held) for item in node.items]
            todo += [(line, held | taken) for line in node.body]
        else:
            # The body of a function runs later, when the lock may be free again.
            later = isinstance(node, ast.FunctionDef | ast.Lambda)
            todo += [(c, frozenset() if later else held) for c in ast.iter_child_nodes(node)]


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def unguarded(
    one: Class, guarded_by: Collection[tuple[str, Guarded]], classes: Collection[Class]
) -> Iterator[str]:
    """The accesses of a class to attributes whose lock it does not hold; ``classes`` has its bases."""
    known = {c.key: c for c in classes}
    family = [one, *(known[k] for k in _ancestors(one, known))]
    uses = [use for member in family for use in uses_of(member)]
    for lock, guard in guarded_by:
        held_in = _methods_under(lock, guard, uses)
        for use in uses:
            if use.name not in guard.attributes or lock in use.held or use.method in held_in:
                continue
            if not (use.is_read and use.method in guard.unguarded_readers):
                where = f"{one.module}.{one.tree.name}.{use.method}, line {use.line}"
                yield f"{where}: {use.name} without {lock}"


def _methods_under(lock: str, guard: Guarded, uses: Collection[Use]) -> set[str]:
    """The methods that run with the lock, as each use of them is under it, and the constructor."""
    begun = {"__init__", "__post_init__"} | guard.callers_hold_lock
    private = {u.name for u in uses if u.name.startswith("_")} - begun
    found = begun | private
    while True:
        open_ = {u.name for u in uses if lock not in u.held and u.method not in found}
        if not found & open_ - begun:
            return found
        found -= open_ - begun


def _ancestors(one: Class, known: Mapping[tuple[str, str], Class]) -> Iterator[tuple[str, str]]:
    for base in one.bases:
        if base in known:
            yield base
            yield from _ancestors(known[base], known)


def declarations(one: Class) -> list[tuple[str, Guarded]]:
    """What a class and its bases declare of attributes, with the names of the locks."""
    keys = (one.key, *_ancestors(one, {c.key: c for c in product_classes()}))
    known = {c.key: c for c in product_classes()}
    return [pair for key in keys for pair in own_declarations(known[key])]


def own_declarations(one: Class) -> list[tuple[str, Guarded]]:
    """What a class itself declares of attributes, with the names of the locks."""
    owner = getattr(importlib.import_module(one.module), one.tree.name)
    guarded_by = vars(owner).get(DECLARATION, {})
    return [(lock, guard) for lock, guard in guarded_by.items() if isinstance(guard, Guarded)]


@functools.cache
def declared() -> tuple[Class, ...]:
    """The classes with a declaration of their own."""
    return tuple(
        one for one in product_classes()
        if any(_names(item) == {DECLARATION} for item in one.tree.body if isinstance(item, ast.stmt))
    )  # fmt: skip


def declared_or_derived() -> list[Class]:
    own, known = {one.key for one in declared()}, {one.key: one for one in product_classes()}
    return [c for c in product_classes() if not own.isdisjoint({c.key, *_ancestors(c, known)})]


# accesses without the lock, while a test runs


class _Checked:
    """An attribute that is there from the constructor on, and then the lock's."""

    def __init__(self, name: str, lock: str, guard: Guarded) -> None:
        self._name, self._lock, self._guard = name, lock, guard

    def __get__(self, one: Any, _: object) -> Any:
        self._check(one)
        try:
            return one.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, one: Any, value: Any) -> None:
        self._check(one)
        one.__dict__[self._name] = value

    def _check(self, one: Any) -> None:
        frame = sys._getframe(2)
        above = frame.f_back
        # Nobody else has what is being made, nor what its constructor calls.
        is_made = "__init__" in (frame.f_code.co_name, above.f_code.co_name if above else "")
        is_free = is_made or frame.f_code.co_name in self._guard.unguarded_readers
        if not frame.f_globals["__name__"].startswith(PRODUCT) or is_free:
            return
        lock = operator.attrgetter(self._lock)(one)
        held = getattr(lock, "_is_owned", None) or lock.locked
        where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
        assert held(), f"{self._name} is touched without {self._lock} in {where}"


def guard_all(patch: pytest.MonkeyPatch) -> None:
    """For one test, of one thread."""
    for one in declared():
        owner = getattr(importlib.import_module(one.module), one.tree.name)
        for lock, guard in own_declarations(one):
            for attribute in guard.attributes:
                patch.setattr(owner, attribute, _Checked(attribute, lock, guard), raising=False)
