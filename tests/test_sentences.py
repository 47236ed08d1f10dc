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
OURS = {"because", "explanation", "reason", "remedy", "sentence", "why", "words"}
"""Attributes that hold the words of a cause."""
CAUSES = {"cause", "error", "finding", "hint", "note", "obstacle", "refused"}
"""Attributes that hold a cause, or a text. They may be compared, but not as a text."""
TEXTS = CAUSES | OURS | {"message", "stderr"}
"""Attributes that hold a cause, its words, or the text of an error."""
VARIABLES = {
    "error_message", "error_text", "explanation", "message", "reason", "sentence", "stderr", "why",
    "words",
}  # fmt: skip
"""Parameters that hold the same."""
ERRORS = {"err", "error", "exc", "failure"}
"""Variables that hold an exception."""
READERS = {
    "count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix", "replace",
    "rfind", "rindex", "rpartition", "rsplit", "split", "startswith",
}  # fmt: skip
PATTERNS = {"findall", "finditer", "fullmatch", "match", "search", "sub", "subn"}
SAME_TEXT = {"casefold", "lower", "removeprefix", "splitlines", "strip"}
"""The text that they return is still the text."""
FOREIGN = {
    "the commands of Slurm": ("base/errors.py",),
    "sbatch --test-only": ("slurm/client/commands/sbatch_test_only.py",),
    "Slurm's parser of slurm.conf": ("slurm/conf/dryrun.py",),
    "the reasons of Slurm's jobs": (
        "machine/ckptroot/job_state.py",
        "slurm/client/fake_timed.py",
    ),
    "the reasons of Slurm's nodes": ("policies/nodes/out_of_service.py",),
    "our mark in the reasons of Slurm's nodes": ("policies/nodes/node_reasons.py",),
    "the consoles and logs of machines": ("policies/launch/trial.py",),
    "AWS": ("providers/aws/errors.py",),
    "Azure": ("providers/azure/errors.py",),
    "Docker": ("providers/docker/errors.py",),
    "Google": ("providers/gcp/errors.py",),
    "OpenNebula": ("providers/opennebula/errors.py",),
    "OpenStack": ("providers/openstack/errors.py",),
    "management controllers": ("providers/base/statuses.py",),
    "clouds, which the contract's tests ask": ("testing/contract.py",),
    "ssh (paramiko)": ("base/ssh_errors.py",),
    "sqlite": ("state/store/trouble.py",),
    "CRIU, DMTCP, BLCR and the launchers on nodes": ("policies/checkpoint/unsavable.py",),
}
"""Per source the modules that may read its texts. There is no such list for texts of ours."""


def is_text(node: ast.AST, variables: frozenset[str]) -> bool:
    """Whether the expression is a text of ours or of an error, or its cause."""
    if isinstance(node, ast.Attribute):
        return node.attr in TEXTS
    if isinstance(node, ast.Name):
        return node.id in variables
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        return node.func.attr in SAME_TEXT and is_text(node.func.value, variables)
    is_str = isinstance(node.func, ast.Name) and node.func.id == "str"
    return is_str and any(is_error(one) or is_text(one, variables) for one in node.args)


def is_error(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ERRORS


def is_words(node: ast.AST, variables: frozenset[str]) -> bool:
    """Whether the expression is the words themselves: causes may be compared."""
    is_cause = isinstance(node, ast.Attribute) and node.attr in CAUSES
    return is_text(node, variables) and not is_cause


def is_literal(node: ast.AST) -> bool:
    is_constant = isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value
    return bool(is_constant) or isinstance(node, ast.JoinedStr)


def is_read(node: ast.AST, variables: frozenset[str]) -> bool:
    """Whether the expression reads a text."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        # Without an argument it only joins the lines.
        is_cut = node.func.attr in READERS and bool(node.args or node.keywords)
        texts = [node.func.value] if is_cut else []
        texts += node.args if node.func.attr in PATTERNS else []
        return any(is_text(one, variables) for one in texts)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
        return node.value.attr in OURS
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        is_search = any(isinstance(op, ast.In | ast.NotIn) for op in node.ops)
        is_searched = is_search and any(is_words(one, variables) for one in node.comparators)
        is_known = any(map(is_literal, sides))
        return is_searched or (is_known and any(is_words(one, variables) for one in sides))
    return False


def named_in(node: ast.AST, variables: frozenset[str]) -> frozenset[str]:
    """The variables that hold such a text in a function: its parameters, and copies of texts."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return variables
    parameters = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    variables |= VARIABLES.intersection(one.arg for one in parameters)
    for one in ast.walk(node):
        if isinstance(one, ast.Assign) and is_text(one.value, variables):
            variables |= {target.id for target in one.targets if isinstance(target, ast.Name)}
    return variables


def reads(node: ast.AST, variables: frozenset[str] = frozenset()) -> Iterator[ast.AST]:
    """The expressions that read a text."""
    variables = named_in(node, variables)
    if is_read(node, variables):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from reads(child, variables)


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), path


def test_texts_are_read_in_the_modules_of_their_sources_alone() -> None:
    named = {module for of_source in FOREIGN.values() for module in of_source}
    found = {
        name: [f"{node.lineno}: {ast.unparse(node)}" for node in reads(ast.parse(path.read_text()))]  # type: ignore[attr-defined]
        for name, path in modules()
    }
    readers = {name: lines for name, lines in found.items() if lines}
    assert {name: lines for name, lines in readers.items() if name not in named} == {}
    assert named == readers.keys(), "a module that reads no text does not stand in the list"


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
        "'refused' in str(error)",
        "'timed out' in error.stderr.lower()",
        "'no quota' in error.message",
        "def meaning(message): return PATTERN.search(message.strip())",
        "def is_known(error):\n  text = str(error)\n  return text.startswith('E')",
    ],
)
def test_each_way_to_read_one_is_seen(line: str) -> None:
    assert len(list(reads(ast.parse(line)))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "a.cause == b.cause",
        "a.cause in known",
        "f'{a.cause}'",
        "' '.join(str(error).split())[:300]",
        "done.stderr.strip()",
    ],
)
def test_causes_are_compared_and_texts_are_shown(line: str) -> None:
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
