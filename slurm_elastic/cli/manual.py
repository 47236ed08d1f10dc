"""Man pages and completions of bash, zsh and fish, made from the commands' own definition. ``python
-m slurm_elastic.cli.manual DIRECTORY`` writes them as they belong below ``share``; setup.py does so
for a wheel. Needs argparse-manpage and shtab.
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
from slurm_elastic.cli import ckptman, daemon, hub, local_agent, main, watchdog
from slurm_elastic.cli.arguments import CONFIG_VARIABLE, DEFAULT_CONFIG
from slurm_elastic.cli.service import parser_of

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
"""What awk prints of ``conf show`` for a metavar: slurmctld, which may hang, is not asked."""
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
}
_EXIT = {
    1: "0 done; 1 it failed; 2 wrong use or wrong configuration; 130 interrupted; 141 the reader "
    "of the output went away.",
    8: "0 stopped by SIGTERM or SIGINT; 2 wrong configuration; 75 something that passes by itself "
    "is in the way.",
}


def write(directory: Path) -> None:
    """Everything, by its place, whatever this process's own configuration is."""
    os.environ.pop(CONFIG_VARIABLE, None)
    for name, text in {**pages(), **completions()}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        writing.as_told(path, text)


def pages() -> dict[str, str]:
    """Man pages by their place."""
    names = [f"slurm-elastic-{name}" for name in sorted(main.COMMANDS)]
    see = ", ".join([*(f"{name}(1)" for name in names), *(f"{name}(8)" for name in SERVICES)])
    whole = main.outer_parser()
    found = {"man/man1/slurm-elastic.1": _page(whole, "grow a Slurm cluster into clouds", 1, see)}
    for name, parser in _children(main.whole_parser()):
        text = _page(parser, main.COMMANDS[name], 1, "slurm-elastic(1)")
        found[f"man/man1/slurm-elastic-{name}.1"] = text
    for parser in _services():
        text = _page(parser, SERVICES[parser.prog], 8, "slurm-elastic(1)")
        found[f"man/man8/{parser.prog}.8"] = text
    return found


def completions() -> dict[str, str]:
    """Each shell's, by its place."""
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


def _page(parser: argparse.ArgumentParser, summary: str, section: int, see: str) -> str:
    """argparse-manpage's, with the examples as they are written."""
    examples, parser.epilog = parser.epilog or "", None
    page = Manpage(parser)
    page.prog = parser.prog.replace(" ", "-")
    page.description, page.section = summary, section
    page.source, page.manual = "slurm-elastic", "slurm-elastic"
    title, _, rest = examples.partition("\n")
    known = title.startswith("example")
    page.add_section(
        "examples" if known else "commands", "=", f".nf\n{_plain(rest if known else examples)}\n.fi"
    )
    page.add_section("exit status", "=", _plain(_EXIT[section]))
    page.add_section("files", "=", _plain(f"{DEFAULT_CONFIG}, or $SLURM_ELASTIC_CONFIG"))
    page.add_section("see also", "=", _plain(see))
    return str(page)


def _plain(text: str) -> str:
    """As troff has it: nothing of it is a request."""
    lines = text.replace("\\", "\\\\").replace("-", "\\-").split("\n")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in lines)


def _complete_names(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.help = "command"  # one that is hidden is not completed
            for child in action.choices.values():
                _complete_names(child)
            continue
        kinds = str(action.metavar).split("|")
        if action.type is Path or FILES.issuperset(kinds):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif known := [one for one in kinds if one in RULES or one in OTHERS]:
            action.complete = _names(known)  # type: ignore[attr-defined]


def _names(metavars: Sequence[str]) -> dict[str, object]:
    """What shtab puts into each shell's file: a function of our own, and its call."""
    name = f"_slurm_elastic_{'_'.join(metavars).lower()}"
    told = "; ".join([*_of_conf(metavars), *(OTHERS[one] for one in metavars if one in OTHERS)])
    words = {"bash": '"${COMP_WORDS[@]}"', "zsh": "${(Q)${(z)BUFFER}}"}
    of = {shell: f"_slurm_elastic_config {all_}; {told}" for shell, all_ in words.items()}
    preamble = {
        "bash": f'{name}() {{ compgen -W "$({of["bash"]})" -- "$1"; }}',
        "zsh": f'{name}() {{ compadd -- ${{(f)"$({of["zsh"]})"}}; }}',
        "fish": f"function {name}; {_FISH_CONFIG}; {told}; end",
    }
    return {"bash": name, "zsh": name, "fish": f"({name})", "preamble": preamble}


def _of_conf(metavars: Sequence[str]) -> Iterator[str]:
    """The command that prints what the configuration has of them, in one reading of it."""
    rules = " ".join(RULES[one] for one in metavars if one in RULES)
    if not rules:
        return
    found = f"timeout 5 slurm-elastic conf show 2>/dev/null | awk '/^[a-z]/ {{at = $1}} {rules}'"
    has_nodes = not {"NODE", "NODES"}.isdisjoint(metavars)
    yield f"{found} | xargs -r -n1 scontrol show hostnames" if has_nodes else found


if __name__ == "__main__":
    write(Path(sys.argv[1]))
