"""Pauses between tries: they double, and no count of failures makes them overflow."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import slurm_elastic
from slurm_elastic.base.backoff import Backoff

PACKAGE = Path(slurm_elastic.__file__).parent
PAUSE = re.compile(r"pause|delay|wait|back_?off|quiet|cool")

PAUSES = st.floats(0.0, 1e9)


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(2.0, 30.0)
    assert [backoff.after(n) for n in range(7)] == [0, 2, 4, 8, 16, 30, 30]
    pauses, pause = [], 0.0
    for _ in range(6):
        pause = backoff.longer(pause)
        pauses.append(pause)
    assert pauses == [2, 4, 8, 16, 30, 30]


@given(PAUSES, PAUSES, st.integers(0, sys.maxsize))
def test_no_count_of_failures_is_too_large(first: float, longest: float, failures: int) -> None:
    backoff = Backoff(first, longest)
    assert 0.0 <= backoff.after(failures) <= backoff.after(failures + 1) <= longest
    assert backoff.after(10**400) <= longest


@given(PAUSES, PAUSES, st.floats(0.0, sys.float_info.max))
def test_no_pause_is_too_long(first: float, longest: float, pause: float) -> None:
    assert Backoff(first, longest).longer(pause) <= longest


def _is_doubled_pause(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(left=ast.Constant(value=2 | 2.0), op=ast.Pow(), right=value):
            return not isinstance(value, ast.Constant)
        case ast.BinOp(left=ast.Constant(value=2 | 2.0), op=ast.Mult(), right=value):
            return bool(PAUSE.search(ast.unparse(value)))
        case ast.BinOp(left=value, op=ast.Mult(), right=ast.Constant(value=2 | 2.0)):
            return bool(PAUSE.search(ast.unparse(value)))
        case ast.AugAssign(target=value, op=ast.Mult()):
            return bool(PAUSE.search(ast.unparse(value)))
    return False


def test_no_module_doubles_pauses_in_another_way() -> None:
    by_hand = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if PAUSE.search(text := path.read_text())
        if any(map(_is_doubled_pause, ast.walk(ast.parse(text))))
    }
    assert by_hand == {
        "base/backoff.py",
        # Looks ever less often after an event, and then at its period: no failure is retried.
        "ckptman/service.py",
        # Looks ever less often while nothing happens: no failure is retried.
        "features/growth/quiet_looks.py",
    }
