"""The help of every command: full phrases, an example that works, a screen of 80 columns."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from slurm_elastic.cli import main
from slurm_elastic.cli.services import ckptman, daemon, local_agent, service, watchdog

NOT_BEGUN_WITH = re.compile(r"(?:of|those|what|which)\b", re.IGNORECASE)


def below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, and those of its sub-commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from below(child)


def of_command(name: str, monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    """The parser that a command's module registers."""
    made: list[argparse.ArgumentParser] = []
    add = main._add

    def kept(name: str, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        add(name, subparsers)
        made.append(subparsers.choices[name])

    monkeypatch.setattr(main, "_add", kept)
    with pytest.raises(SystemExit):
        main.parsed([name, "-h"])
    return made[0]


def services() -> list[argparse.ArgumentParser]:
    about = {
        "slurm-elasticd": daemon.ABOUT,
        "slurm-elastic-ckptman": ckptman.ABOUT,
        "slurm-elastic-watchdog": watchdog.ABOUT,
    }
    parsers = [service.parser_of(name, text) for name, text in about.items()]
    return [*parsers, local_agent.parser()]


def check(parser: argparse.ArgumentParser) -> None:
    text = parser.format_help()
    told = parser.prog
    assert [line for line in text.splitlines() if len(line) > 80] == [], told
    assert re.search(r"^examples?:\n  ", text, re.MULTILINE), f"{told}: no example"
    assert parser.description, f"{told}: no description"
    assert parser.description[0].isupper(), told
    assert parser.description.endswith("."), told
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                assert choice.help, f"{told} {choice.dest}"
                assert not NOT_BEGUN_WITH.match(choice.help), choice.help
            continue
        assert action.help, f"{told} {action.dest}: no help"
        assert len(action.help.split()) > 1, f"{told} {action.dest}: {action.help}"
        assert not NOT_BEGUN_WITH.match(action.help), action.help
        assert not action.help.startswith("default"), f"{told} {action.dest}: {action.help}"


@pytest.mark.parametrize("name", main.COMMANDS)
def test_a_commands_help_is_whole_phrases_with_an_example(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for parser in below(of_command(name, monkeypatch)):
        check(parser)
        told = (parser.epilog or "").replace("\\\n", " ")
        for line in re.findall(r"^  (?:\S.* |eval \$\()?slurm-elastic (.*)", told, re.MULTILINE):
            assert main.parsed(shlex.split(line.removesuffix(")"))).command == name, line


@pytest.mark.parametrize("parser", services(), ids=lambda parser: parser.prog)
def test_a_services_help_is_whole_phrases_with_an_example(
    parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    check(parser)


def test_the_first_help_lists_every_command_in_one_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main.parsed(["-h"])
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if len(line) > 80] == []
    listed = [name for group in main.GROUPS.values() for name in group]
    assert sorted(listed) == sorted(main.COMMANDS)
    for name, summary in main.COMMANDS.items():
        assert f"  {name} " in text
        assert summary in " ".join(text.split())
