"""``slurm-elastic conf``: the configuration, and our part of the site's slurm.conf."""

from __future__ import annotations

import argparse
import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.pages import page
from slurm_elastic.base.processes.signals import ended_like_ctrl_c
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.operate.console import say
from slurm_elastic.cli.setting_up import conf_upgrade
from slurm_elastic.cli.streams import visible
from slurm_elastic.config import Config, blocked_clouds, configfile
from slurm_elastic.config.reference import keys
from slurm_elastic.config.resolve import effective
from slurm_elastic.model.directive import describe
from slurm_elastic.providers.base.joining import program_of
from slurm_elastic.slurm.client import controller
from slurm_elastic.slurm.conf import check, conf_diff, install, pair, plan
from slurm_elastic.slurm.conf import uninstall as slurm_uninstall
from slurm_elastic.slurm.conf.checks import cloud_prices, without_effect
from slurm_elastic.slurm.conf.checks.overridden import overridden
from slurm_elastic.slurm.conf.install import InstallResult
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.doctor import copies, network

_ACTIONS: dict[str, str] = {
    "show": "print the whole configuration, defaults included",
    "keys": "print all keys, and when you would change each",
    "schema": "print the JSON Schema of the file, for editors",
    "upgrade": "give the keys of an older file their new names",
    "join": "print the program that machines of a cloud run to become nodes",
    "render": "print the file that slurm.conf would include",
    "check": "prove that the site's own nodes and partitions stay as they are",
    "diff": "print the changes that install would make",
    "install": "check, then put everything in place",
    "uninstall": "restore slurm.conf and remove all that install put in place",
}
_DESCRIPTIONS: dict[str, str] = {
    "show": "Print the configuration with all defaults, or every mistake in it at once. Comments "
    "at its top say which clouds are not in use yet, and why.",
    "keys": "Print every key of the configuration with its default and when you would change it, "
    "or only the keys with WORD in their names. No configuration is read.",
    "schema": "Print the JSON Schema of the configuration file, by which an editor completes keys, "
    "shows their meaning and marks mistakes. No configuration is read. `conf show` checks more.",
    "upgrade": "Give the keys of the configuration file that have been renamed their new names. "
    "All other text stays as it is, and FILE.before-upgrade keeps the old one.",
    "join": "Print the program that the machines of a cloud run when they boot. It is empty "
    "without join.head, and for clouds whose machines get it in another way.",
    "render": "Print the file that slurm.conf would include: our nodes, partitions and options.",
    "check": "Prove that the site's own nodes and partitions stay as they are: a throw-away "
    "slurmctld reads a copy of slurm.conf without and with our part. Nothing is changed.",
    "diff": "Print the changes that install would make: our options, nodes and partitions that it "
    "adds (+), removes (-) or changes (~), and the names of our programs. Nothing is changed.",
    "install": "Check, then put everything in place. If a step fails, all earlier steps are "
    "undone.",
    "uninstall": "Restore slurm.conf byte for byte and remove all that install put in place.",
}
_RESTART = "--restart 'systemctl restart slurmctld'"
_OPTIONS = {
    "keys": " timings",
    "upgrade": " --dry-run",
    "join": " aws",
    "install": f" {_RESTART}",
    "uninstall": f" {_RESTART}",
}
"""The rest of the example of an action, after its name."""
_RESTART_HELP = "restart slurmctld with this command, and wait until it answers"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "conf",
        description="Show and check the configuration; put its part into the site's slurm.conf, "
        f"and take it out again. See {page('install')}.",
        epilog=examples("slurm-elastic conf check", f"slurm-elastic conf install {_RESTART}"),
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    runs: dict[str, Callable[[argparse.Namespace], int]] = {
        "show": show,
        "keys": show_keys,
        "schema": show_schema,
        "upgrade": conf_upgrade.run,
        "join": join,
        "render": render,
        "check": run_check,
        "diff": diff,
        "install": run_install,
        "uninstall": run_uninstall,
    }
    for name, text in _ACTIONS.items():
        example = examples(f"slurm-elastic conf {name}{_OPTIONS.get(name, '')}")
        action = actions.add_parser(
            name, help=text, description=_DESCRIPTIONS[name], epilog=example
        )
        action.set_defaults(run=runs[name])
        if name == "keys":
            action.add_argument("word", metavar="WORD", nargs="?", default="", help="such as ssh")
        if name in ("upgrade", "install", "uninstall"):
            action.add_argument("--dry-run", action="store_true", help="print the changes only")
        if name == "join":
            action.add_argument("cloud", metavar="CLOUD", help="a cloud of the configuration")
        if name == "diff":
            action.add_argument(
                "--all", action="store_true", help="print every changed file as a unified diff"
            )
        if name == "install":
            action.add_argument(
                "--peer", metavar="HOST",
                help=f"also print the steps for HOST, the other head ({page('two-heads')})",
            )  # fmt: skip
        if name in ("install", "uninstall"):
            action.add_argument("--restart", type=_command, metavar="COMMAND", help=_RESTART_HELP)
            action.add_argument(
                "--force",
                action="store_true",
                help="continue even if jobs or paid machines are on nodes that it removes, or if"
                " a throw-away slurmctld does not start on your own files",
            )


def _command(text: str) -> str:
    try:
        controller.split_command(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def show(args: argparse.Namespace) -> int:
    """Print the configuration; comments name the clouds that are not in use yet."""
    config = _load(args)
    _require_joining(config)
    for reason in blocked_clouds(config).values():
        print(f"# not in use: {reason}")
    for line in _directives(config):
        print(visible(f"# now: {line}"))
    print(configfile.dump(effective(config)), end="")
    return 0


def show_keys(args: argparse.Namespace) -> int:
    """Print the keys whose names contain ``args.word``. ConfigError if there are none."""
    matches = [key for key in keys() if args.word in key.place]
    if not matches:
        raise ConfigError(f"no key has {args.word!r} in its name")
    for key in matches:
        print(f"{key.place} ({key.default or 'required'})\n    {key.when}")
    return 0


def show_schema(args: argparse.Namespace) -> int:
    """Print the schema."""
    del args
    # Imported here, because it needs every kind of cloud.
    from slurm_elastic.config.schema import schema

    print(json.dumps(schema(), indent=2))
    return 0


def _directives(config: Config) -> Iterator[str]:
    """The changes that operators made at run time; none if this user may not read the ledger."""
    now = time.time()
    with contextlib.suppress(SlurmElasticError, sqlite3.Error, OSError):
        path = config.state / "ledger.db"
        with config.sharing(), contextlib.closing(Ledger(path, read_only=True)) as ledger:
            directives = ledger.directives.all()
        yield from (describe(directive, now) for directive in directives)


def join(args: argparse.Namespace) -> int:
    """Print the program by which machines of a cloud join.

    Print nothing without ``join.head``, or if the cloud needs no program.
    """
    config = _load(args)
    names = [cloud.name for cloud in config.clouds]
    if args.cloud not in names:
        raise ConfigError(f"there is no cloud {args.cloud!r}, only {', '.join(names)}")
    print(program_of(config, config.cloud(args.cloud)), end="")
    return 0


def render(args: argparse.Namespace) -> int:
    print(plan.make(_load(args)).fragment, end="")
    return 0


def run_check(args: argparse.Namespace) -> int:
    """Check slurm.conf, and print the proof and the steps that remain to be done by hand.

    Exit 1 if slurmctld does not start on the site's own files: a restart would be its end.
    """
    config = _load(args)
    _require_joining(config)
    planned = plan.make(config)
    prices = cloud_prices.notices(config)
    lost = copies.without_way_back(config)
    unused = without_effect.notices(config)
    moved = network.moved_addresses(config)
    notices = (*planned.notices, *prices, *unused, *filter(None, (lost, moved)))
    remarks = (*overridden(config, planned.version), *notices, *planned.manual)
    try:
        report = check.check(planned)
    except ConfigError:
        _say(remarks)  # otherwise a person would find them one run later
        raise
    _say((*report.lines, *remarks))
    return 1 if report.failure else 0


def diff(args: argparse.Namespace) -> int:
    """Print the difference; nothing if there is none."""
    _print_diff(_load(args), whole=args.all)
    return 0


def _print_diff(config: Config, *, whole: bool) -> None:
    planned = plan.make(config)
    print(conf_diff.whole(planned) if whole else conf_diff.short(planned), end="")


def run_install(args: argparse.Namespace) -> int:
    """Install. Exit 0 also if a change still needs a restart of slurmctld by hand.

    Exit 2 if all files were in place already and slurmctld still does not serve them: a person who
    repeats the command must see that a restart is missing.
    """
    path, config = Path(args.config), _load(args)
    if args.dry_run:
        _print_diff(config, whole=False)
        return 0
    peer = pair.steps(config, path, args.peer, args.restart) if args.peer else ()
    with ended_like_ctrl_c():  # an end of the connection takes back what was done, too
        outcome = install.install(config, path, restart=args.restart, force=args.force)
    _say((*outcome.lines, *peer))
    return 2 if outcome.restart_needed and not outcome.changed else 0


def run_uninstall(args: argparse.Namespace) -> int:
    """Uninstall. Exit 0 also if slurmctld still has to be restarted by hand."""
    path = Path(args.config)
    # Not whole=True: a mistake in one cloud must not keep a site from uninstalling.
    config = configfile.load(path)
    options = {"force": args.force, "dry_run": args.dry_run}
    with ended_like_ctrl_c():
        return _end(slurm_uninstall.uninstall(config, path, restart=args.restart, **options))


def _load(args: argparse.Namespace) -> Config:
    """Load the configuration. ConfigError if any cloud has a mistake, because a part of the
    configuration alone is not used.
    """
    return configfile.load(Path(args.config), whole=True)


def _require_joining(config: Config) -> None:
    """ConfigError if the program that machines run to join cannot be made."""
    for cloud in config.clouds:
        program_of(config, cloud)


def _end(outcome: InstallResult) -> int:
    _say(outcome.lines)
    return 0


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        say(line)
