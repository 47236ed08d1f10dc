"""The small changes of a module that ``scripts/mutate`` tries: see its ``--help``."""

from __future__ import annotations

import ast
import copy
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
LOCKS = re.compile(
    r"(^|_)(lock|spending|holding|gather|changing|reading|counting|changed|wake|launching"
    r"|locked|alone|turn)$"
)
"""The names of locks."""
DURABLE = re.compile(r"fsync|synchronous = full")


class Mutant(NamedTuple):
    """A module's text with one change, and where that is. ``was`` and ``made``: what changed."""

    path: Path
    line: int
    text: str
    was: str
    made: str


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that may stand in place of this one."""
    match node:
        case ast.Compare(ops=[operator]):
            for other in COMPARED.get(type(operator), ()):
                yield _with(node, ops=[other()])
        case ast.BinOp(op=operator) if type(operator) in COMPUTED:
            yield _with(node, op=COMPUTED[type(operator)]())
        case ast.BoolOp(op=operator):
            yield _with(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool() | int() | float() as value):
            yield ast.Constant(not value if isinstance(value, bool) else value + 1)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Call(func=ast.Name(id=name)) if name in CALLED:
            yield _with(node, func=ast.Name(CALLED[name]))
        case ast.AugAssign() | ast.Continue() | ast.Expr(value=ast.Call()):
            yield ast.Pass()


def unlocked(node: ast.AST) -> Iterator[ast.AST]:
    """A block without its lock, a file that is not locked."""
    if isinstance(node, ast.Expr) and _last_name(node.value) == "flock":
        yield ast.Pass()
    if isinstance(node, ast.With):
        kept = [item for item in node.items if not LOCKS.search(_last_name(item.context_expr))]
        if len(kept) < len(node.items):
            yield _with(node, items=kept) if kept else ast.If(ast.Constant(True), node.body, [])


def _last_name(node: ast.AST) -> str:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Subscript(value=value) | ast.Call(func=value):
            return _last_name(value)
    return ""


def undurable(node: ast.AST) -> Iterator[ast.AST]:
    """Nothing that waits for the disk."""
    if isinstance(node, ast.Expr | ast.Constant) and DURABLE.search(ast.unparse(node)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if not isinstance(node.value.args[0], ast.Constant):
                yield ast.Pass()
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield ast.Constant(node.value.replace("= full", "= normal"))


OPERATORS = {"any": changed, "locks": unlocked, "durability": undurable}


def _keywords(node: ast.AST) -> Sequence[ast.keyword]:
    """The keywords that give a class its form (``frozen=True``): no behaviour of its own."""
    if not isinstance(node, ast.ClassDef):
        return ()
    calls = [one for one in node.decorator_list if isinstance(one, ast.Call)]
    return [*node.keywords, *(word for call in calls for word in call.keywords)]


def _is_for_types(node: ast.AST) -> bool:
    """Whether what it imports is for types alone."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _with(node: ast.AST, **fields: object) -> ast.AST:
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Place(NamedTuple):
    """Something that may be changed, and what may stand there instead."""

    path: Path
    node: ast.expr | ast.stmt
    other: ast.AST


def places(path: Path, kind: str = "any") -> Iterator[Place]:
    """Each change of that kind of a module; some may turn out to be none."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left = {id(word.value) for one in ast.walk(tree) for word in _keywords(one)}
    left |= {id(one) for one in ast.walk(tree) if _is_for_types(one)}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt) and id(node) not in left:
            yield from (Place(path, node, other) for other in OPERATORS[kind](node))


def mutant(place: Place) -> Mutant | None:
    """The module as it would be; None where that is no program, or the same."""
    lines = place.path.read_text(encoding="utf-8").splitlines(keepends=True)
    text = _replaced(lines, place.node, place.other)
    if text is None:
        return None
    at = place.node.lineno - 1
    return Mutant(place.path, at + 1, text, lines[at].strip(), text.splitlines()[at].strip())


def mutants(path: Path, kind: str = "any") -> Iterator[Mutant]:
    """All of a module."""
    yield from (made for place in places(path, kind) if (made := mutant(place)) is not None)


def sampled(modules: Sequence[Path], kind: str, count: int, seed: int) -> list[Mutant]:
    """One mutant for each of ``count`` lines that have any, each line as likely; all of all lines
    where ``count`` is 0. The same modules and seed give the same.
    """
    found: dict[tuple[Path, int], list[Place]] = {}
    for path in modules:
        for place in places(path, kind):
            found.setdefault((path, place.node.lineno), []).append(place)
    if not count:
        return [made for some in found.values() for one in some if (made := mutant(one))]
    chance = random.Random(seed)
    out: list[Mutant] = []
    for line in chance.sample(sorted(found), len(found)):
        some = chance.sample(found[line], len(found[line]))
        made = next((made for place in some if (made := mutant(place))), None)
        out += [made] if made else []
        if len(out) == count:
            break
    return out


def _replaced(lines: Sequence[str], node: ast.expr | ast.stmt, other: ast.AST) -> str | None:
    """The text with ``other`` in the node's place; None where that is no program, or the same."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before = lines[first].encode()[: node.col_offset].decode()
    after = lines[last].encode()[node.end_col_offset :].decode()
    written = ast.unparse(ast.fix_missing_locations(other))
    if isinstance(node, ast.expr):
        written = f"({written})"
    else:
        written = written.replace("\n", "\n" + " " * node.col_offset)
    new = "".join([*lines[:first], before + written + after, *lines[last + 1 :]])
    try:
        same = ast.dump(ast.parse(new)) == ast.dump(ast.parse("".join(lines)))
    except SyntaxError:  # as in the middle of an f-string
        return None
    return None if same else new
