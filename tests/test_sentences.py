"""No code reads a sentence of ours: nothing compares, cuts or searches one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurm_elastic
from slurm_elastic.base.sentence import Sentence
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.holds import GrowthStartsIt

PACKAGE = Path(slurm_elastic.__file__).parent
SENTENCES = {"sentence", "reason", "why", "words", "finding", "cause", "explanation", "because"}
"""Attributes that hold a cause, or its words."""
READERS = {
    "count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix", "replace",
    "rfind", "rindex", "rpartition", "rsplit", "split", "splitlines", "startswith", "strip",
}  # fmt: skip
PATTERNS = {"findall", "finditer", "fullmatch", "match", "search", "sub"}
FOREIGN = {
    "cli/trial_run.py": "the console of a machine",
    "policies/launch/trial.py": "the console of a machine",
    "testing/growth.py": "a growth policy of another package",
    "watch/door/orders.py": "an operator's own words",
    "checkpointers": "the words of DMTCP, BLCR and CRIU",
    "cli/history.py": "a history of jobs",
    "machine": "files and programs of a node",
    "model/slurm.py": "the reasons of Slurm's jobs",
    "policies/growth/unused_purchases.py": "the reasons of Slurm's jobs",
    "policies/nodes/node_reasons.py": "the reasons of Slurm's nodes",
    "policies/nodes/out_of_service.py": "the reasons of Slurm's nodes",
    "providers": "the errors of clouds",
    "slurm": "what Slurm prints",
    "state/ledger/earlier_rows.py": "rows of earlier releases",
}
"""The modules, or folders, that read texts of others, and whose."""


def is_sentence(node: ast.AST) -> bool:
    """Whether the expression is a sentence by its name, or ``str`` of a cause."""
    if isinstance(node, ast.Attribute):
        return node.attr in SENTENCES
    is_text = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return is_text and node.func.id == "str" and any(map(is_sentence, node.args))  # type: ignore[attr-defined]


def is_words(node: ast.AST) -> bool:
    """Whether the expression is the words themselves: causes may be compared."""
    return is_sentence(node) and not (isinstance(node, ast.Attribute) and node.attr == "cause")


def is_text(node: ast.AST) -> bool:
    is_literal = isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value
    return bool(is_literal) or isinstance(node, ast.JoinedStr)


def reads(tree: ast.AST) -> Iterator[ast.AST]:
    """The expressions that read a sentence."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            is_cut = node.func.attr in READERS and is_sentence(of)
            if is_cut or (node.func.attr in PATTERNS and any(map(is_sentence, node.args))):
                yield node
        elif isinstance(node, ast.Subscript) and is_words(node.value):
            yield node
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            searched = any(isinstance(op, ast.In | ast.NotIn) for op in node.ops)
            if (searched and any(map(is_words, node.comparators))) or (
                any(map(is_words, sides)) and any(map(is_text, sides))
            ):
                yield node


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if not any(name == one or name.startswith(f"{one}/") for one in FOREIGN):
            yield name, path


def test_nobody_reads_a_sentence() -> None:
    found = [
        f"{name}:{node.lineno}: {ast.unparse(node)}"  # type: ignore[attr-defined]
        for name, path in modules()
        for node in reads(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize("name", FOREIGN)
def test_each_reader_of_foreign_texts_is_there(name: str) -> None:
    assert (PACKAGE / name).exists()


@pytest.mark.parametrize(
    "line",
    [
        "breaker.cause.startswith('x')",
        "hold.sentence.partition(' after ')",
        "'did not register' in row.why",
        "str(made.cause).split('; do: ')",
        "PATTERN.fullmatch(made.reason)",
        "made.reason == 'suspended by Slurm'",
        "made.reason[:200]",
    ],
)
def test_each_way_to_read_one_is_seen(line: str) -> None:
    assert len(list(reads(ast.parse(line)))) == 1


@pytest.mark.parametrize("line", ["a.cause == b.cause", "a.cause in known", "f'{a.cause}'"])
def test_causes_are_compared_and_shown(line: str) -> None:
    assert list(reads(ast.parse(line))) == []


def test_a_sentence_is_shown_and_not_compared() -> None:
    cause = GrowthStartsIt()
    assert f"{cause.sentence}" == str(cause)
    with pytest.raises(TypeError, match="compare the causes"):
        assert cause.sentence == Quoted(text="x").sentence
    with pytest.raises(TypeError):
        assert {Sentence("x")}


def test_slurm_elastic_ckptman_and_growth_record_causes_with_fields() -> None:
    quoting = [
        str(path.relative_to(PACKAGE))
        for folder in ("ckptman", "features")
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        if "Quoted" in path.read_text()
    ]
    assert quoting == []
