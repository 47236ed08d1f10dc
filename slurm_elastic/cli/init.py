"""``slurm-elastic init``: the first configuration, made of what the site and its hosts tell."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml
from msgspec.structs import replace
from rich.table import Table

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError, why
from slurm_elastic.base.units import counted
from slurm_elastic.cli import conf, doctor
from slurm_elastic.cli.arguments import DEFAULT_CONFIG
from slurm_elastic.cli.console import plain, say
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.streams import visible
from slurm_elastic.config import configfile
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.found import Found, SearchPlace
from slurm_elastic.model.cluster import Location
from slurm_elastic.setup import compose, merge, reach
from slurm_elastic.setup.questions import (
    Answers,
    Earlier,
    Question,
    answered,
    first,
    questions,
)
from slurm_elastic.setup.site import Facts, facts
from slurm_elastic.watch.doctor.environment import of_the_units

SLURM_CONF = Path("/etc/slurm/slurm.conf")
BY_HAND = "docs/configuration-clouds.md; for clouds of other packages their own pages"
_MOST_BYTES = 65536
NOTHING = "nothing is written"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "init",
        description="Read slurm.conf, look for clouds that this host can reach, ask at most nine "
        "questions, and write a configuration with comments. It is then checked as 'conf show', "
        "'conf check' and 'doctor' do. A configuration that is there gets the clouds and pools "
        "that it lacks, and the answers that are others than it has. Nothing else is changed, and "
        "nothing is bought.",
        epilog=examples("slurm-elastic init", "slurm-elastic init --yes --output /tmp/first.yaml"),
    )
    parser.add_argument(
        "--yes", action="store_true",
        help="ask nothing: take every default; public clouds stay shut",
    )  # fmt: skip
    parser.add_argument(
        "--answers", type=Path, metavar="FILE",
        help="take answers from this YAML file, and the default of each that it lacks",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, metavar="FILE",
        help="write to this file (default: the configuration, see --config)",
    )  # fmt: skip
    parser.add_argument(
        "--slurm-conf", type=Path, metavar="FILE",
        help=f"the site's slurm.conf (default: $SLURM_CONF, else {SLURM_CONF})",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the file; 1 where a check of it fails."""
    output = Path(args.output or args.config)
    before = _text(output)
    try:
        text = _composed(args, output, before)
        print()
        if text == before:
            say(f"{output} has all that was found and answered; nothing is changed.")
        else:
            for made in _write(output, text):
                print(f"made directory {made}")
            print(f"{'changed' if before else 'wrote'} {output}")
        return _checked(output)
    except KeyboardInterrupt:
        written = _text(output) != before
        what = f"{output} is written; its checks are not finished" if written else NOTHING
        print(f"\nstopped; {what}", file=sys.stderr)
        raise


def _text(path: Path) -> str | None:
    """What is there; ConfigError where that is no file, or no text."""
    if not path.exists():
        return None
    if not path.is_file():
        raise ConfigError(f"{path}: expected a file, no device and no pipe; {NOTHING}")
    try:
        return configfile.text(path)
    except ConfigError as error:
        raise ConfigError(f"{error}; nothing is changed") from None


def _composed(args: argparse.Namespace, output: Path, before: str | None) -> str:
    """The text of the configuration, by the site, its clouds and the answers."""
    conf_file = args.slurm_conf or Path(os.environ.get("SLURM_CONF") or SLURM_CONF)
    site = facts(conf_file.resolve())
    there = configfile.parse(before, str(output)) if before is not None else None
    say(
        f"{site.conf}: cluster {site.cluster}, {counted(site.nodes, 'node')}, most of "
        f"{site.cpus} cpus and {site.memory} MiB; partition {site.partition or '(none)'}; "
        f"auth/{site.auth}; {site.accounting}; SlurmUser {site.user}"
    )
    kinds = table()
    with of_the_units():  # credentials may be named there alone
        place = SearchPlace(home=Path.home(), environment=os.environ)
        found = _renamed(reach.look(kinds, place, site.user), site)
    _show_found(found)
    if others := reach.not_found(kinds, found):
        say(f"Not found here, to be written by hand: {', '.join(others)} ({BY_HAND})")
    earlier = merge.earlier(there, found) if there else None
    if there is None:
        _expect_a_cloud(found)
    else:
        say(f"{output} is there: only what is new is put into it, and its values are the defaults.")

    def merged(given: Answers) -> merge.Merge:
        return merge.Merge(before or "", str(output), compose.chosen(found, given), site, given)

    def new(given: Answers) -> str:
        return compose.checked(site, found, given, str(output))

    given = _given(args, site, found, earlier, new if before is None else merged)
    for line in compose.differs(found, given):
        say(line)
    return new(given) if before is None else merged(given).text


def _expect_a_cloud(found: Sequence[Found]) -> None:
    """ConfigError where all that the site has lacks something: a rehearsal would hide that."""
    if any(one.usable for one in found):
        return
    lacking = [one.name for one in found if one.lacking]
    if lacking:
        names = ", ".join(lacking)
        raise ConfigError(f"no cloud can be used yet: do first what is said of {names}; {NOTHING}")
    say("No cloud can be used yet: the file gets one in memory, shut, to rehearse with.")


def _renamed(found: Sequence[Found], site: Facts) -> tuple[Found, ...]:
    """No cloud is called as a partition or node of the site."""
    return tuple(
        replace(one, name=f"{one.name}-cloud") if one.name in site.taken else one for one in found
    )


def _show_found(found: Sequence[Found]) -> None:
    """Each with what was found of it, whether it is usable, and else what would enable it."""
    shown = Table(box=None, pad_edge=False, show_edge=False)
    for title in ("cloud", "usable", "found"):
        shown.add_column(title, overflow="fold")
    for one in found:
        public = " (public)" if one.location is Location.PUBLIC else ""
        types = f"; {counted(len(one.types), 'type')}" if one.types and not one.sized else ""
        usable = "yes" if one.usable else "no"
        shown.add_row(f"{one.name}{public}", usable, visible(f"{one.what}{types}"))
        if one.enable:
            shown.add_row("", "", visible(f"do: {one.enable}"))
    print()
    plain().print(shown)


def _given(
    args: argparse.Namespace,
    site: Facts,
    found: Sequence[Found],
    earlier: Earlier | None,
    rules: Callable[[Answers], object],
) -> Answers:
    """The answers to all questions that follow from each other."""
    there = earlier or Earlier()
    told = _read_answers(args.answers) if args.answers is not None else {}
    asks = not args.yes and args.answers is None
    if asks and not sys.stdin.isatty():
        raise ConfigError("nobody can be asked here: add --yes or --answers FILE")

    def answer(question: Question, so_far: Answers) -> Answers:
        if asks:
            return _ask(question, so_far, rules)
        return _read(question, told, so_far, rules, args.answers or "--yes")

    given = there.answers
    for question in first(found, there):
        given = answer(question, given)
    asked = questions(site, compose.named(found, given), earlier)
    if "accounts" in told and any(question.key == "groups" for question in asked):
        raise ConfigError(
            f"{args.answers}: accounts: found names of accounts, expected groups: at this site an "
            "account is whatever anybody types"
        )
    for question in asked:
        given = answer(question, given)
    return given


def _read(
    question: Question, told: Mapping[str, str], so_far: Answers,
    rules: Callable[[Answers], object], source: Path | str,
) -> Answers:  # fmt: skip
    """The answer of a file, or the default."""
    text = told.get(question.key, question.default)
    try:
        given = answered(question, text, so_far, rules)
    except ValueError as error:
        raise ConfigError(f"{source}: {question.key}: {error}; {NOTHING}") from None
    if (doubt := reach.doubt(so_far, given)) and text != question.default:
        say(f"{source}: {question.key}: {doubt}")
    return given


def _read_answers(path: Path) -> Mapping[str, str]:
    try:
        with path.open(encoding="utf-8") as file:
            told = yaml.safe_load(file.read(_MOST_BYTES))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {why(error)}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not YAML: {error}") from None
    if not isinstance(told, dict):
        raise ConfigError(f"{path}: expected a mapping of answers by their keys")
    strange = sorted(str(key) for key in told if key not in _KEYS)
    if strange:
        expected = ", ".join(_KEYS)
        raise ConfigError(f"{path}: found {', '.join(strange)}, expected one of {expected}")
    return {key: _as_typed(value) for key, value in told.items()}


_KEYS = (
    "clouds", "hosts", "accounts", "groups", "cap", "shape", "spot", "max_time", "head",
    "checkpoints",
)  # fmt: skip


def _as_typed(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{node}={url}" for node, url in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)


def _ask(question: Question, so_far: Answers, rules: Callable[[Answers], object]) -> Answers:
    """Until it is an answer; an empty line takes the default, and what this host does not know has
    to be typed twice.
    """
    print()
    say(f"{question.text}  ({question.why})")
    doubted = question.default
    while True:
        try:
            text = input(f"  [{question.default}] ").strip() or question.default
        except EOFError:
            print()
            raise ConfigError(f"stopped; {NOTHING}") from None
        try:
            given = answered(question, text, so_far, rules)
        except ValueError as error:
            say(f"  {error}")
            continue
        doubt = reach.doubt(so_far, given) if text != doubted else ""
        if not doubt:
            return given
        say(f"  {doubt}: correct it, or type it again")
        doubted = text


def _write(path: Path, text: str) -> list[Path]:
    """Whole or not at all; the directories that were made for it."""
    made = [one for one in reversed(path.absolute().parents) if not one.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    writing.replace(path, text.encode(), 0o644)
    return made


def _checked(path: Path) -> int:
    """The checks, and the next two commands. ``conf show`` in a line: its pages would hide them."""
    if configfile.read_uuid(path) is None:
        configfile.ensure_uuid(path)
        print(f"wrote {path.parent / configfile.UUID_FILE}, which marks this cluster's machines")
    option = "" if path == Path(DEFAULT_CONFIG) else f" --config {path}"
    config = configfile.load(path, whole=True)
    clouds, pools = counted(len(config.clouds), "cloud"), counted(len(config.pools), "pool")
    print(f"conf show: {clouds}, {pools}\nconf check:")
    sys.stdout.flush()
    failed = 0
    try:
        failed = conf.run_check(argparse.Namespace(config=path))
    except ConfigError as error:
        say(str(error))
        failed = 2
    print("\ndoctor --quick:")
    ill = doctor.run(argparse.Namespace(config=path, json=False, quick=True, clouds=False))
    print("next:")
    if failed:
        print(f"  slurm-elastic{option} conf check       # once that is put right")
    if ill:
        print(f"  slurm-elastic{option} doctor --quick   # once what it found is put right")
    print(f"  slurm-elastic{option} conf install     # as root: puts it into slurm.conf")
    if not (failed or ill):
        print(f"  slurm-elastic{option} doctor           # once the services run (docs/install.md)")
    return 1 if failed or ill else 0
