"""Man pages and completions for bash, zsh and fish, made from the commands' argparse parsers.

``python -m slurm_elastic.cli.setting_up.manual DIRECTORY`` writes them in the layout of
``share``; setup.py does so for a wheel. It needs argparse-manpage and shtab.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import shtab
from argparse_manpage.manpage import Manpage

from slurm_elastic.base import writing
from slurm_elastic.cli import main
from slurm_elastic.cli.arguments import CONFIG_VARIABLE, DEFAULT_CONFIG
from slurm_elastic.cli.services import ckptman, copier, daemon, hub, local_agent, watchdog
from slurm_elastic.cli.services.service import parser_of

COMPLETIONS = {
    "bash": "bash-completion/completions/slurm-elastic",
    "zsh": "zsh/site-functions/_slurm-elastic",
    "fish": "fish/vendor_completions.d/slurm-elastic.fish",
}
FILES = frozenset({"FILE", "FILE.yaml", "DIRECTORY", "DIR", "CSV", "OUT", "[POOL=]JSON", "SCRIPT"})
"""Metavars of options that take a path."""
_NAME = 'at == "{}:" && /^[- ] name:/ {{print $NF}}'
_CLOUDS, _POOLS = _NAME.format("clouds"), _NAME.format("pools")
_NODES = 'at == "pools:" && /^[- ] nodes:/ {print $NF}'
_PAYERS = (
    'at == "policies:" && /^  [a-z]/ {kind = sub(/_budgets:.*/, "", $1) ? $1 : ""} '
    'at == "policies:" && kind && /^    [^ ]/ {sub(/:$/, "", $1); print kind ":" $1}'
)
RULES = {
    "CLOUD": _CLOUDS, "POOL": _POOLS, "NODE": _NODES, "NODES": _NODES,
    "SCOPE": f'BEGIN {{print "cluster"}} {_CLOUDS} {_POOLS} {_PAYERS}',
}  # fmt: skip
"""For a metavar, the awk rules that print its names from ``conf show``. We do not ask slurmctld,
because it may hang and block the user's shell.
"""
_JOBS = "timeout 2 squeue -h -o %A 2>/dev/null"
_STATUS = "timeout 2 slurm-elastic status --json 2>/dev/null | grep -o '{}' | cut -d'\"' -f4"
OTHERS = {
    "JOB": _JOBS, "JOBID": _JOBS,
    "OFFER": _STATUS.format('"key":"[^"]*","code"'),
    "MACHINE": _STATUS.format('"id":"[^"]*","node":"[^"]*","pool":""'),
}  # fmt: skip
"""Commands of any shell that print the other names that a metavar stands for."""
_CONFIG = """_slurm_elastic_config() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --config) [ "$2" = "=" ] && shift; export SLURM_ELASTIC_CONFIG="$2" ;;
      --config=*) export SLURM_ELASTIC_CONFIG="${1#--config=}" ;;
    esac
    shift
  done
}"""
_FISH_CONFIG = (
    "set -l all (commandline -opc); contains -- --config $all; "
    "and set -lx SLURM_ELASTIC_CONFIG $all[(math 1 + (contains -i -- --config $all))]"
)
SERVICES = {
    "slurm-elasticd": "start, end and repair machines for slurmctld",
    "slurm-elastic-ckptman": "save jobs and move them off machines that are taken away",
    "slurm-elastic-watchdog": "end machines while slurm-elasticd is silent",
    "slurm-elastic-local": "start and end slurmd's of a cloud with provider local",
    "slurm-elastic-hub": "keep the tunnel to machines and the head's firewall",
    "slurm-elastic-copier": "copy jobs' files to and from machines",
}
_EXIT = {
    1: "0 success; 1 failure; 2 wrong use or wrong configuration; 130 interrupted; 141 the reader "
    "of the output went away.",
    8: "0 stopped by SIGTERM or SIGINT; 2 wrong configuration; 75 temporary failure: retry.",
}


def write(directory: Path) -> None:
    """Write all files below ``directory``, independent of this process's own configuration."""
    os.environ.pop(CONFIG_VARIABLE, None)
    for name, text in {**pages(), **completions()}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        writing.as_told(path, text)


def pages() -> dict[str, str]:
    """Man pages by their path below ``share``."""
    names = [f"slurm-elastic-{name}" for name in sorted(main.COMMANDS)]
    see = ", ".join([*(f"{name}(1)" for name in names), *(f"{name}(8)" for name in SERVICES)])
    whole = main.outer_parser()
    pages_by_place = {
        "man/man1/slurm-elastic.1": _page(whole, "grow a Slurm cluster into clouds", 1, see)
    }
    for name, parser in _children(main.whole_parser()):
        text = _page(parser, main.COMMANDS[name], 1, "slurm-elastic(1)")
        pages_by_place[f"man/man1/slurm-elastic-{name}.1"] = text
    for parser in _services():
        text = _page(parser, SERVICES[parser.prog], 8, "slurm-elastic(1)")
        pages_by_place[f"man/man8/{parser.prog}.8"] = text
    return pages_by_place


def completions() -> dict[str, str]:
    """Each shell's completions by their path below ``share``."""
    parser = main.whole_parser()
    _complete_names(parser)
    return {
        path: shtab.complete(parser, shell=shell, preamble="" if shell == "fish" else _CONFIG)
        for shell, path in COMPLETIONS.items()
    }


def _children(whole: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in whole._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _services() -> Iterator[argparse.ArgumentParser]:
    yield parser_of("slurm-elasticd", daemon.ABOUT)
    yield parser_of("slurm-elastic-ckptman", ckptman.ABOUT)
    yield watchdog.parser()
    yield local_agent.parser()
    yield hub.parser()
    yield copier.parser()


def _page(parser: argparse.ArgumentParser, summary: str, section: int, see: str) -> str:
    """The page of argparse-manpage, with the examples unchanged in a section of their own."""
    examples, parser.epilog = parser.epilog or "", None
    page = Manpage(parser)
    page.prog = parser.prog.replace(" ", "-")
    page.description, page.section = summary, section
    page.source, page.manual = "slurm-elastic", "slurm-elastic"
    title, _, body = examples.partition("\n")
    has_examples = title.startswith("example")
    page.add_section(
        "examples" if has_examples else "commands",
        "=",
        f".nf\n{_plain(body if has_examples else examples)}\n.fi",
    )
    page.add_section("exit status", "=", _plain(_EXIT[section]))
    page.add_section("files", "=", _plain(f"{DEFAULT_CONFIG}, or $SLURM_ELASTIC_CONFIG"))
    page.add_section("see also", "=", _plain(see))
    return str(page)


def _plain(text: str) -> str:
    """Escape text for troff, so that no line of it is a troff request."""
    lines = text.replace("\\", "\\\\").replace("-", "\\-").split("\n")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in lines)


def _complete_names(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.help = "command"  # shtab skips actions whose help is suppressed
            for child in action.choices.values():
                _complete_names(child)
            continue
        kinds = str(action.metavar).split("|")
        if action.type is Path or FILES.issuperset(kinds):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif completable := [kind for kind in kinds if kind in RULES or kind in OTHERS]:
            action.complete = _names(completable)  # type: ignore[attr-defined]


def _names(metavars: Sequence[str]) -> dict[str, object]:
    """For shtab: a completion function of our own for each shell, and its call."""
    name = f"_slurm_elastic_{'_'.join(metavars).lower()}"
    candidates = "; ".join(
        [*_of_conf(metavars), *(OTHERS[metavar] for metavar in metavars if metavar in OTHERS)]
    )
    command_lines = {"bash": '"${COMP_WORDS[@]}"', "zsh": "${(Q)${(z)BUFFER}}"}
    commands = {
        shell: f"_slurm_elastic_config {command_line}; {candidates}"
        for shell, command_line in command_lines.items()
    }
    preamble = {
        "bash": f'{name}() {{ compgen -W "$({commands["bash"]})" -- "$1"; }}',
        "zsh": f'{name}() {{ compadd -- ${{(f)"$({commands["zsh"]})"}}; }}',
        "fish": f"function {name}; {_FISH_CONFIG}; {candidates}; end",
    }
    return {"bash": name, "zsh": name, "fish": f"({name})", "preamble": preamble}


def _of_conf(metavars: Sequence[str]) -> Iterator[str]:
    """The command that prints the configured names of all ``metavars``, in one ``conf show``."""
    rules = " ".join(RULES[metavar] for metavar in metavars if metavar in RULES)
    if not rules:
        return
    awk = f"timeout 5 slurm-elastic conf show 2>/dev/null | awk '/^[a-z]/ {{at = $1}} {rules}'"
    has_nodes = not {"NODE", "NODES"}.isdisjoint(metavars)
    yield f"{awk} | xargs -r -n1 scontrol show hostnames" if has_nodes else awk


if __name__ == "__main__":
    write(Path(sys.argv[1]))
