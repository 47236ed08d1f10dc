"""``slurm-elastic``: finds the sub-command's module, runs it, turns errors into exit codes.

Exit codes: 0 success; 1 failure; 2 wrong use, wrong configuration or a sandbox that refuses; 130
interrupted; 141 the reader of the output went away. We import only the sub-command that was asked
for, so that a missing dependency of one command leaves the others working.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import re
import sqlite3
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from slurm_elastic.base.errors import ConfigError, SandboxError, SlurmElasticError
from slurm_elastic.cli.arguments import CONFIG_VARIABLE, DEFAULT_CONFIG
from slurm_elastic.cli.helptext import Command
from slurm_elastic.cli.streams import NO_READER, flush_or_discard, log_plainly, prepare, visible

COMMANDS: Mapping[str, str] = {
    "quickstart": "run ten jobs on a sandbox, from sbatch to the last machine's end",
    "sandbox": "run a whole hybrid cluster on this machine, to try things on",
    "simulate": "show what policies would have cost on a job history, and how long jobs waited",
    "plan": "choose a policy and reservations by a job history",
    "help": "show a page of the documentation",
    "init": "write the first configuration, from slurm.conf and the clouds that can be reached",
    "conf": "show and check the configuration; add its part to slurm.conf or remove it",
    "iam": "write the least rights that a cloud's account needs, as its policy or rules",
    "key": "change the munge key, or the keys of auth/slurm, on head and machines",
    "image": "make the image that machines start from, and prove that they become nodes",
    "rootpart": "write the program that nodes need for checkpoints by criu and dmtcp",
    "offers": "show which machines would be bought now, their prices, and rejected offers",
    "price": "show when a job would start and what it would cost, before it is submitted",
    "try": "start one machine as a job would, follow every step, end it, report what broke",
    "status": "show clouds, pools, nodes and machines as they are now, and what they cost",
    "mine": "show your own jobs: where, since when, their cost, why they wait, what is saved",
    "cost": "show what accounts, users or jobs cost, to the micro-dollar",
    "report": "report a month: spent, saved, unused, waiting avoided, and a forecast",
    "web": "serve a page with all this, where operators may act, on this host",
    "metrics": "print metrics for Prometheus once, for node_exporter's textfile collector",
    "explain": "show why a node or a job is where it is: every decision in order",
    "doctor": "find problems of clouds, services or slurm.conf, and say what to do",
    "journal": "back up, restore or verify the services' records",
    "bundle": "collect logs and configuration for support, with secrets removed",
    "ckpt": "list checkpoints and notices, save a job, announce the end of a node",
    "clear": "end cool-downs and pauses, as root or SlurmUser",
    "pause": "start no new machines in a cloud, a pool or anywhere, for a while",
    "resume": "end a pause, a drain, a replacement or a migration",
    "limit": "change a cap on machines or dollars at once, for a while",
    "drain": "empty machines after their jobs; start no new ones",
    "replace": "empty machines after their jobs, and start new ones in their place",
    "migrate": "empty a cloud and continue its jobs in another one",
}
MODULES: Mapping[str, str] = {
    "quickstart": "setting_up.quickstart",
    "sandbox": "setting_up.sandbox",
    "simulate": "planning.simulate",
    "plan": "planning.plan",
    "help": "setting_up.help",
    "init": "setting_up.init",
    "conf": "setting_up.conf",
    "iam": "setting_up.iam",
    "key": "orders.key",
    "image": "setting_up.image",
    "rootpart": "services.rootpart",
    "offers": "jobs.offers",
    "price": "jobs.price",
    "try": "setting_up.trial",
    "status": "operate.status",
    "mine": "jobs.mine",
    "cost": "reports.cost",
    "report": "reports.report",
    "web": "operate.web",
    "metrics": "operate.metrics",
    "explain": "jobs.explain",
    "doctor": "operate.doctor",
    "journal": "operate.journal",
    "bundle": "setting_up.bundle",
    "ckpt": "jobs.ckpt",
    "clear": "orders.clear",
    "pause": "orders.pause",
    "resume": "orders.resume",
    "limit": "orders.limit",
    "drain": "orders.drain",
    "replace": "orders.replace",
    "migrate": "orders.migrate",
}
"""The module of each command, imported when the command runs."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    "before anything is paid": ("quickstart", "sandbox", "simulate", "plan", "help"),
    "set it up": ("init", "conf", "iam", "key", "image", "rootpart", "offers", "try"),
    "every day": (
        "status",
        "mine",
        "price",
        "cost",
        "report",
        "explain",
        "doctor",
        "ckpt",
        "web",
        "metrics",
        "journal",
        "bundle",
        "clear",
    ),
    "steer it": ("pause", "resume", "limit", "drain", "replace", "migrate"),
}
"""The groups in which ``-h`` lists the commands."""
_EXAMPLES = """examples:
  slurm-elastic quickstart          # see it work, without an account at a cloud
  slurm-elastic conf check          # does your slurm.conf work with it?
  slurm-elastic status --watch      # what runs now, and what it costs
  slurm-elastic explain 42          # why job 42 is where it is

'slurm-elastic COMMAND -h' explains a command, with an example."""


def program() -> NoReturn:
    """Run this process's command line and end the process.

    ``status`` ends without the interpreter's clean-up: it has only read, and freeing tens of
    thousands of values would be a tenth of its time.
    """
    code = main()
    if _command(_config_first(sys.argv[1:])) == "status":
        flush_or_discard()  # flushes stdout, which os._exit does not
        os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (without the program's name) and return its exit code."""
    prepare()
    log_plainly(logging.WARNING, "%(levelname)s %(name)s %(message)s")
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except SlurmElasticError as error:
        print(f"slurm-elastic: {visible(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError | SandboxError) else 1
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT, as in a shell
    except BrokenPipeError:  # before OSError, whose subclass it is
        flush_or_discard()
        return NO_READER
    except OSError as error:
        flush_or_discard()
        print(f"slurm-elastic: {visible(_os_sentence(error))}", file=sys.stderr)
        return 1
    except sqlite3.Error as error:
        text = f"the services' records cannot be read or written: {error}"
        print(f"slurm-elastic: {visible(text)}", file=sys.stderr)
        return 1
    return code


def _run(argv: Sequence[str]) -> int:
    parser, args = _understood(argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    code: int = args.run(args)
    return code


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The parsed command line (without the program's name). SystemExit for wrong use."""
    return _understood(argv)[1]


def whole_parser() -> argparse.ArgumentParser:
    """All commands with all of their options: for man pages and completions."""
    parser = outer_parser()
    subparsers = _subparsers(parser)
    for name in COMMANDS:
        _add(name, subparsers)
    return parser


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg]
    """Gives each command its summary, which completions show."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:  # noqa: ANN401
        options = {"help": COMMANDS[name], **options}
        parser: argparse.ArgumentParser = super().add_parser(name, **options)
        return parser


def _subparsers(
    parser: argparse.ArgumentParser,
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    own_form: type[argparse.ArgumentParser] = Command
    return parser.add_subparsers(
        action=_Commands,
        dest="command",
        metavar="COMMAND",
        help=argparse.SUPPRESS,
        parser_class=own_form,
        prog="slurm-elastic",
    )


def _understood(argv: Sequence[str]) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    argv = _config_first(argv)
    parser = outer_parser()
    subparsers = _subparsers(parser)
    command = _command(argv)
    for name in COMMANDS:
        if name == command:
            _add(name, subparsers)
        else:
            subparsers.add_parser(name)
    if command is not None and command not in COMMANDS:
        parser.error(_unknown(command))
    if command == "price":
        argv = _script_first(argv)
    return parser, parser.parse_args(argv)


def _script_first(argv: Sequence[str]) -> Sequence[str]:
    """The words with the job script before the options of sbatch, which writes it behind them.

    Only sbatch knows which options take a value. So the script is the first word that names a file
    and is not the word after an option; else the first word that names a file.
    """
    begin = [*argv].index("price") + 1
    files = [n for n in range(begin, len(argv)) if Path(argv[n]).is_file()]
    # ``-o out.txt``: a value may follow. ``--time=10`` and ``-n2`` have theirs.
    opens_value = re.compile(r"-.|--[^=]*")
    scripts = [n for n in files if n == begin or not opens_value.fullmatch(argv[n - 1])]
    place = min(scripts, default=min(files, default=begin))
    return [*argv[:begin], *argv[place : place + 1], *argv[begin:place], *argv[place + 1 :]]


def _unknown(word: str) -> str:
    import difflib  # here, because the import takes a millisecond that other commands save

    close = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"commands: {', '.join(COMMANDS)}"
    return f"there is no command {word!r}; {hint}"


def outer_parser() -> argparse.ArgumentParser:
    """The program itself, without its commands."""
    parser = Command(
        prog="slurm-elastic",
        usage="%(prog)s [--config FILE] COMMAND ...",
        description="Let a Slurm cluster grow into its own and public clouds, and shrink again.",
        epilog=f"{_listed()}\n\n{_EXAMPLES}",
        allow_abbrev=False,
    )
    default = os.environ.get(CONFIG_VARIABLE) or DEFAULT_CONFIG
    parser.add_argument(
        "--config",
        type=Path,
        default=Path(default),
        metavar="FILE",
        help=f"read this configuration (default: ${CONFIG_VARIABLE} or {DEFAULT_CONFIG})",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and end")
    return parser


def _listed() -> str:
    """All commands with their summaries, group by group."""
    blocks = []
    for title, names in GROUPS.items():
        lines = [line for name in names if name in COMMANDS for line in _summary(name)]
        blocks.append("\n".join([f"{title}:", *lines]))
    return "\n\n".join(blocks)


def _summary(name: str) -> list[str]:
    return textwrap.wrap(
        COMMANDS[name], 78, initial_indent=f"  {name:<11} ", subsequent_indent=" " * 14
    )


def _add(name: str, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    try:
        module = importlib.import_module(f"slurm_elastic.cli.{MODULES.get(name, name)}")
    except ImportError as error:
        raise SlurmElasticError(f"the command {name!r} cannot be loaded: {error}") from error
    module.add(subparsers)


def _config_first(argv: Sequence[str]) -> list[str]:
    """Move ``--config FILE`` to the front from any place before a ``--``: people write it last."""
    front: list[str] = []
    remaining = list(argv)
    end = remaining.index("--") if "--" in remaining else len(remaining)
    i = 0
    while i < end:
        width = 2 if remaining[i] == "--config" else 1
        if i + width > end:
            return ["--config"]  # argparse then reports that its value is missing
        if width == 2 or remaining[i].startswith("--config="):
            front += remaining[i : i + width]
            del remaining[i : i + width]
            end -= width
        else:
            i += 1
    return front + remaining


def _command(argv: Sequence[str]) -> str | None:
    """The first word that is no option; ``--config`` must already stand in front."""
    skip = 0
    for word in argv:
        if skip:
            skip -= 1
        elif word == "--config":
            skip = 1
        elif not word.startswith("-"):
            return word
    return None


def _os_sentence(error: OSError) -> str:
    error_text = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {error_text}" if error.filename is not None else error_text


class _Version(argparse.Action):
    """Look the version up only for ``--version``: it takes as long as all other start-up work."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the version and exit."""
        parser._print_message(f"slurm-elastic {_version()}\n", sys.stdout)  # flushes, as for help
        parser.exit()


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("slurm-elastic")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    program()
