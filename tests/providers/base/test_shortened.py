"""Programs for machines lose comments, docstrings and annotations of functions, and nothing else."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from slurm_elastic.config.basics import scratch
from slurm_elastic.providers.base import joining, shortened

PROGRAMS = Path(joining.__file__).parents[2] / "machine" / "programs"


class WithoutTexts(ast.NodeTransformer):
    """Without the statements that are texts, and without annotations of functions."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [s for s in body if not is_text(s)] or body  # type: ignore[attr-defined]
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
        return node


def is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


@pytest.mark.parametrize(
    "path", [PROGRAMS / "agent.py", PROGRAMS / "tunnel.py", Path(scratch.__file__)], ids=str
)
def test_a_program_is_the_same_for_python(path: Path) -> None:
    source = path.read_text()
    short = shortened.python(source)
    whole, left = ast.parse(source), ast.parse(short)
    assert ast.dump(WithoutTexts().visit(whole)) == ast.dump(WithoutTexts().visit(left))
    assert '"""' not in short
    assert "->" not in short
    assert "#" not in short.replace("%~#", "").replace("~#!", "")
    assert len(short) < 0.8 * len(source)


def test_annotations_of_functions_go_and_defaults_stay() -> None:
    source = (
        "def f(a: int, *b: str, c: dict[str, int] = {1: 2}) -> tuple[int, str]:\n    d: int = 1\n"
    )
    assert shortened.python(source) == "def f(a, *b, c = {1: 2}):\n d: int = 1"


def test_an_annotation_of_several_lines_stays() -> None:
    source = "def f(\na: dict[\nint, str\n],\n) -> tuple[\nint\n]:\n return 1"
    assert shortened.python(source) == source


def test_a_function_of_a_docstring_alone_and_a_text_of_several_lines_stay() -> None:
    source = 'def f():\n    """Nothing."""\n\n\nX = """a\n  # b"""  # c\n'
    assert shortened.python(source) == 'def f():\n """Nothing."""\nX = """a\n  # b"""'


@pytest.mark.parametrize("name", ["join.sh", "again.sh", "mounts.sh", "epilog.sh"])
def test_a_program_of_the_shell_stays_one(name: str) -> None:
    short = shortened.shell((PROGRAMS / name).read_text())
    assert short.startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n"], input=short, text=True, check=True)


def test_here_documents_stay_as_they_are() -> None:
    source = (
        "#!/bin/sh\n# why\ncat >x <<'END'\n#!/bin/sh\n# kept\n\nEND\n\n  # why\ntrue # this, too\n"
    )
    expected = "#!/bin/sh\ncat >x <<'END'\n#!/bin/sh\n# kept\n\nEND\ntrue # this, too"
    assert shortened.shell(source) == expected


INDENTED = '''\
def said(
        words,
        *more):
    if words:
        return """one
    two""" + (
            "three")
    # a remark before a deeper line
    for word in more:
        yield word
'''


def test_a_level_of_indentation_is_one_blank_and_texts_stay_as_they_are() -> None:
    text = shortened.python(INDENTED)
    assert (
        text
        == '''\
def said(
words,
*more):
 if words:
  return """one
    two""" + (
"three")
 for word in more:
  yield word'''
    )
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(INDENTED))


def test_classes_that_a_machine_does_not_need_go() -> None:
    source = "class A:\n    x = 1\n\n\nclass B:\n    pass\n\n\nc = 2\n"
    assert shortened.python(shortened.without(source, {"A"})) == "class B:\n pass\nc = 2"
