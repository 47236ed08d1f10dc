"""Commands that screens print: each is accepted as printed, and does what it promises."""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from status_cases import busy_ledger

from slurm_elastic.cli.main import main, whole_parser
from slurm_elastic.cli.orders.departure_orders import departure
from slurm_elastic.config.configfile import load
from slurm_elastic.model.directive import Departure, Directive, Word
from slurm_elastic.state.ledger import Ledger

GOLDEN = Path(__file__).parents[1] / "golden"
CLOUD_AND_POOL = """
cluster: {{name: alps}}
state_dir: {state}
slurm: {{bin_dir: {state}/no-slurm-here}}
clouds:
  - {{name: rack, provider: local, location: on-premises}}
  - {{name: cellar, provider: local, location: on-premises, socket: /run/slurm-elastic/2.sock}}
pools:
  - {{name: rack, cloud: rack, nodes: "op[1-2]", slurmd_port: 17001, cpus: 4, memory: 8G}}
  - {{name: gpus, cloud: rack, nodes: "gp[1-2]", slurmd_port: 17011, cpus: 4, memory: 8G}}
  - {{name: cellar, cloud: cellar, nodes: "ce[1-2]", slurmd_port: 17021, cpus: 4, memory: 8G}}
"""
"""The first pool has its cloud's name, as ``init`` writes it, and a second pool was added."""
ORDERS = (
    ["pause"],
    ["pause", "cloud:rack"],
    ["pause", "pool:rack"],
    ["pause", "gpus"],
    ["limit", "cluster", "nodes", "3"],
    ["limit", "cloud:rack", "nodes", "3"],
    ["limit", "pool:rack", "max_nodes", "1"],
)
DEPARTURES = [
    (verb, text) for verb in Departure.VERBS for text in ("cloud:rack", "pool:rack", "op1")
]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(CLOUD_AND_POOL.format(state=tmp_path))
    return str(path)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = busy_ledger(tmp_path / "ledger.db")
    yield made
    made.close()


def printed_commands(text: str) -> list[list[str]]:
    """The arguments of each ``slurm-elastic COMMAND ...`` in the text, which may be wrapped."""
    found = re.findall(r"slurm-elastic ([a-z][^`;,\n]*)", text)
    return [shlex.split(words) for words in found]


@pytest.mark.skipif(os.geteuid() != 0, reason="root may")
@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_the_command_that_an_order_prints_ends_exactly_this_order(
    order: list[str],
    file: str,
    ledger: Ledger,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    unrelated = ["limit", "pool:cellar", "max_nodes", "1"]
    others = (["pause", "cloud:rack"], ["pause", "pool:rack"], unrelated)
    for other in others:
        if other != order:
            assert main([*other, "--config", file]) == 0
    before = words_in_force(ledger)
    capsys.readouterr()
    assert main([*order, "--config", file]) == 0
    *_, end = printed_commands(capsys.readouterr().out)
    assert main([*end, "--config", file]) == 0, end
    assert words_in_force(ledger) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="root may")
@pytest.mark.parametrize(("verb", "text"), DEPARTURES)
def test_the_command_that_ends_a_departure_ends_exactly_this_departure(
    verb: str, text: str, file: str, ledger: Ledger
) -> None:
    assert main(["pause", "cellar", "--config", file]) == 0
    before = words_in_force(ledger)
    leaving = departure(load(Path(file)), verb, text)
    ledger.directives.give(Directive(word=leaving, who="root", since=1.0, starts=1.0))
    (end,) = printed_commands(leaving.ending_command)
    assert main([*end, "--config", file]) == 0, end
    assert words_in_force(ledger) == before


def words_in_force(ledger: Ledger) -> set[Word]:
    return {directive.word for directive in ledger.directives.all()}


@pytest.mark.skipif(os.geteuid() != 0, reason="root may")
def test_a_name_of_two_things_is_refused_with_both(
    file: str, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pause", "cloud:rack", "--config", file]) == 0
    capsys.readouterr()
    assert main(["resume", "rack", "--config", file]) == 2
    error = capsys.readouterr().err
    assert "'rack' is a cloud and a pool: say cloud:rack or pool:rack" in error
    assert "paused or drained: cloud:rack" in error
    assert main(["resume", "cloud:rack", "--config", file]) == 0


def phrases() -> Iterator[tuple[str, str, list[str]]]:
    """Each command in a string of the package: its place, the command, and its options."""
    package = Path(__file__).parents[2] / "slurm_elastic"
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for words in _OURS.findall(_text(node)):
                place = f"{path.relative_to(package)}:{getattr(node, 'lineno', 0)}"
                yield place, words.split()[0], re.findall(r"(?<!\S)--[a-z][a-z-]*", words)


_OURS = re.compile(r"\bslurm-elastic ([a-z][^`;,\n)]*)")


def _text(node: ast.AST) -> str:
    """A string as it stands in the source, with X for each value that is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(p.value) if isinstance(p, ast.Constant) else "X" for p in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def options(parser: argparse.ArgumentParser) -> dict[str, set[str]]:
    """By command: the options that it has, those of its own commands included."""
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return {name: _options(sub) for name, sub in commands.choices.items()}


def _options(parser: argparse.ArgumentParser) -> set[str]:
    known = {option for action in parser._actions for option in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            known.update(*map(_options, action.choices.values()))
    return known


def test_each_command_that_the_package_names_has_the_options_that_it_names() -> None:
    known = options(whole_parser())
    wrong = [
        f"{place}: {command} {option}"
        for place, command, wanted in phrases()
        if command in known and command != "price"  # it also takes sbatch's options
        for option in wanted
        if option not in known[command]
    ]
    assert wrong == []


def test_each_command_that_a_text_advises_is_one() -> None:
    known = options(whole_parser())
    advised = re.compile(r"(?:`|do: )slurm-elastic ([a-z][a-z-]*)")
    package = Path(__file__).parents[2] / "slurm_elastic"
    wrong = [
        f"{path.relative_to(package)}: {command}"
        for path in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        for command in advised.findall(_text(node))
        if command not in known
    ]
    assert wrong == []
