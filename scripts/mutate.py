"""Sampled mutation of modules: see ``scripts/mutate --help``."""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[1]
TOGETHER = 900.0
"""Seconds for the tests of one mutant; one that makes them hang is noticed, too."""
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
    r"(^|_)(lock|spending|holding|gather|changing|reading|counting|changed|wake|launching)$"
)
"""What a lock is called."""
DURABLE = re.compile(r"fsync|synchronous = full")


class Mutant(NamedTuple):
    """A module's text with one change, and where that is."""

    path: Path
    line: int
    text: str


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in place of a node."""
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
    """A block without its lock."""
    if isinstance(node, ast.With):
        kept = [item for item in node.items if not LOCKS.search(_last_name(item.context_expr))]
        if len(kept) < len(node.items):
            yield _with(node, items=kept) if kept else ast.If(ast.Constant(True), node.body, [])


def _last_name(node: ast.AST) -> str:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Subscript(value=value):
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
    """What a class says of its form (``frozen=True``): no behaviour of its own."""
    return node.keywords if isinstance(node, ast.ClassDef) else ()


def _with(node: ast.AST, **fields: object) -> ast.AST:
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def mutants(path: Path, kind: str = "any") -> Iterator[Mutant]:
    """Each change of that kind of a module, as its text would be then."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    tree = ast.parse(text)
    forms = {id(word.value) for one in ast.walk(tree) for word in _keywords(one)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr | ast.stmt) or id(node) in forms:
            continue
        for other in OPERATORS[kind](node):
            if (new := _replaced(lines, node, other)) is not None:
                yield Mutant(path, node.lineno, new)


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


def tests_of(path: Path) -> list[str]:
    """The folder, or the file, of tests that mirrors a module."""
    inside = path.relative_to(REPO / "slurm_elastic")
    for part in inside.parents:
        if part != Path() and (REPO / "tests" / part).is_dir():
            return [f"tests/{part}"]
    named = REPO / "tests" / f"test_{inside.parts[0].removesuffix('.py')}.py"
    return [str(named.relative_to(REPO))] if named.exists() else []


def survives(clone: Path, tests: Sequence[str]) -> bool:
    """Whether all tests are green in the clone."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
        "-n", str(os.cpu_count()), "-m", "not e2e and not engine", *tests,
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(clone), "SLURM_ELASTIC_CHAOS_SECONDS": "15"}
    try:
        done = subprocess.run(
            command, cwd=clone, env=env, capture_output=True, check=False, timeout=TOGETHER
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> int:
    """Exit 1 where a mutant survived."""
    parser = argparse.ArgumentParser(prog="scripts/mutate")
    parser.add_argument("paths", nargs="*", default=["slurm_elastic/policies"])
    parser.add_argument("--count", type=int, default=30, help="of the sample")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", nargs="+", default=[], help="in place of those that mirror")
    parser.add_argument(
        "--only", choices=sorted(OPERATORS), default="any", dest="kind",
        help="locks: a block without its lock; durability: nothing is synced",
    )  # fmt: skip
    given = parser.parse_args()
    modules = [found for path in given.paths for found in _modules(REPO / path)]
    found = [mutant for module in modules for mutant in mutants(module, given.kind)]
    sample = random.Random(given.seed).sample(found, min(given.count, len(found)))
    print(f"{len(found)} mutants of {len(modules)} modules, {len(sample)} of them are tried")
    with tempfile.TemporaryDirectory(prefix="se-mutate-") as place:
        clone = Path(place) / "clone"
        shutil.copytree(REPO, clone, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__"))
        left = sum(_tried(clone, mutant, given.tests) for mutant in sample)
    print(f"killed {len(sample) - left} of {len(sample)}, survived {left}")
    return 1 if left else 0


def _modules(path: Path) -> list[Path]:
    found = [path] if path.is_file() else sorted(path.rglob("*.py"))
    if not found:
        raise SystemExit(f"scripts/mutate: {path}: there is no module")
    return found


def _tried(clone: Path, mutant: Mutant, given: Sequence[str]) -> bool:
    """Try one and say what came of it; whether it survived."""
    name = mutant.path.relative_to(REPO)
    tests = given or tests_of(mutant.path)
    if not tests:
        raise SystemExit(f"scripts/mutate: {name}: no tests mirror it; say which with --tests")
    place = clone / name
    text = place.read_text(encoding="utf-8")
    place.write_text(mutant.text, encoding="utf-8")
    try:
        left = survives(clone, tests)
    finally:
        place.write_text(text, encoding="utf-8")
    print(f"{'SURVIVED' if left else 'killed  '} {name}:{mutant.line}", flush=True)
    if left:
        lines = text.splitlines(keepends=True), mutant.text.splitlines(keepends=True)
        print("".join(difflib.unified_diff(*lines, n=1)), flush=True)
    return left


if __name__ == "__main__":
    sys.exit(main())
