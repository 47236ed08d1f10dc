"""``slurm-elastic init``: the first configuration, made of what the site and its hosts tell."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from msgspec.structs import replace
from rich.table import Table

from slurm_elastic.base import writing
from slurm_elastic.base.errors import ConfigError, SlurmElasticError, why
from slurm_elastic.base.units import counted
from slurm_elastic.cli import conf, doctor
from slurm_elastic.cli.arguments import DEFAULT_CONFIG
from slurm_elastic.cli.console import plain
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.streams import visible
from slurm_elastic.config import configfile
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.found import Found, SearchPlace
from slurm_elastic.model.cluster import Location
from slurm_elastic.setup import compose, merge, reach
from slurm_elastic.setup.questions import Answers, Earlier, Question, answers, questions
from slurm_elastic.setup.site import Facts, facts

SLURM_CONF = Path("/etc/slurm/slurm.conf")
BY_HAND = "docs/configuration-clouds.md; for clouds of other packages their own pages"
_MOST_BYTES = 65536


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "init",
        description="Read slurm.conf, look for clouds that this host can reach, ask at most nine "
        "questions, and write a configuration with comments. It is then checked as 'conf show', "
        "'conf check' and 'doctor' do. A configuration that is there keeps all that is in it; "
        "clouds and pools that it lacks are added, and answers that are others than it has are "
        "changed. Nothing else is changed, and nothing is bought.",
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
            print(f"{output} has all of it already; nothing is changed.")
        else:
            for made in _write(output, text):
                print(f"made directory {made}")
            print(f"{'changed' if before else 'wrote'} {output}")
        return _checked(output)
    except KeyboardInterrupt:
        written = _text(output) != before
        what = f"{output} is written, but not checked" if written else "nothing is written"
        print(f"\nstopped; {what}", file=sys.stderr)
        raise


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _composed(args: argparse.Namespace, output: Path, before: str | None) -> str:
    """The text of the configuration, by the site, its clouds and the answers."""
    conf_file = args.slurm_conf or Path(os.environ.get("SLURM_CONF") or SLURM_CONF)
    site = facts(conf_file.resolve())
    earlier = merge.earlier(configfile.parse(before, str(output))) if before is not None else None
    print(
        f"{site.conf}: cluster {site.cluster}, {site.nodes} nodes, most of {site.cpus} cpus and "
        f"{site.memory} MiB; partition {site.partition or '(none)'}; auth/{site.auth}; "
        f"{site.accounting}; SlurmUser {site.user}"
    )
    kinds = table()
    found = _renamed(reach.look(kinds, SearchPlace(home=Path.home(), environment=os.environ)), site)
    _show_found(found)
    if others := reach.not_found(kinds, found):
        print(f"Not found here, to be written by hand: {', '.join(others)} ({BY_HAND})")
    if before is None:
        _expect_a_cloud(found)
    else:
        print(f"{output} is there: it keeps what it has, and defaults are as it has them.")
    given = _given(args, questions(site, found, earlier), earlier)
    if earlier is None or before is None:
        text = compose.compose(site, found, given)
    else:
        text = merge.added(before, str(output), compose.chosen(found, given), site, given)
        text = merge.answered(text, str(output), earlier.answers, given)
    configfile.parse(text, str(output))
    return text


def _expect_a_cloud(found: Sequence[Found]) -> None:
    """ConfigError where all that the site has lacks something: a rehearsal would hide that."""
    if any(one.usable for one in found):
        return
    lacking = [f"{one.what}: {one.enable}" for one in found if one.lacking]
    if lacking:
        raise ConfigError(
            f"no cloud can be used yet, and nothing is written: {'; '.join(lacking)}. Then run "
            "this again"
        )
    print("No cloud can be used yet: the file gets one in memory, shut, to rehearse with.")


def _renamed(found: Sequence[Found], site: Facts) -> tuple[Found, ...]:
    """No cloud is called as a partition or node of the site."""
    return tuple(
        replace(one, name=f"{one.name}-cloud") if one.name in site.taken else one for one in found
    )


def _show_found(found: Sequence[Found]) -> None:
    """A line each: what was found, whether it is usable, what would enable it."""
    shown = Table(box=None, pad_edge=False, show_edge=False)
    for title in ("cloud", "found", "usable", "what would enable it"):
        shown.add_column(title, overflow="fold")
    for one in found:
        public = " (public)" if one.location is Location.PUBLIC else ""
        types = f"; {len(one.types)} types" if one.types else ""
        shown.add_row(
            f"{one.name}{public}", visible(f"{one.what}{types}"),
            "yes" if one.usable else "no", visible(one.enable),
        )  # fmt: skip
    print()
    plain().print(shown)


def _given(args: argparse.Namespace, asked: Sequence[Question], earlier: Earlier | None) -> Answers:
    if args.yes or args.answers is not None:
        told = _read_answers(args.answers, asked) if args.answers is not None else {}
        try:
            return answers(told, asked, earlier)
        except ValueError as error:
            raise ConfigError(f"{args.answers}: {error}") from None
    if not sys.stdin.isatty():
        raise ConfigError("nobody can be asked here: add --yes or --answers FILE")
    return answers({question.key: _ask(question) for question in asked}, asked, earlier)


def _read_answers(path: Path, asked: Sequence[Question]) -> Mapping[str, str]:
    try:
        with path.open(encoding="utf-8") as file:
            told = yaml.safe_load(file.read(_MOST_BYTES))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {why(error)}") from None
    if not isinstance(told, dict):
        raise ConfigError(f"{path}: expected a mapping of answers by their keys")
    keys = {question.key for question in asked}
    strange = sorted(str(key) for key in told if key not in _KEYS)
    if strange:
        expected = ", ".join(_KEYS)
        raise ConfigError(f"{path}: found {', '.join(strange)}, expected one of {expected}")
    if "accounts" in told and "groups" in keys:
        raise ConfigError(
            f"{path}: accounts: found names of accounts, expected groups: at this site an account "
            "is whatever anybody types"
        )
    return {key: _as_typed(value) for key, value in told.items() if key in keys}


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


def _ask(question: Question) -> str:
    """Until it is an answer; an empty line takes the default."""
    print(f"\n{question.text}  ({question.why})")
    while True:
        try:
            text = input(f"  [{question.default}] ").strip() or question.default
        except EOFError:
            raise SlurmElasticError("stopped; nothing is written") from None
        try:
            question.accepts(text)
        except ValueError as error:
            print(f"  expected {error}")
        else:
            return text


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
        print(visible(str(error)))
        failed = 2
    print("\ndoctor --quick:")
    ill = doctor.run(argparse.Namespace(config=path, json=False, quick=True, clouds=False))
    print("next:")
    if failed:
        print(f"  slurm-elastic{option} conf check       # once that is put right")
    print(f"  slurm-elastic{option} conf install     # as root: puts it into slurm.conf")
    if not failed:
        print(f"  slurm-elastic{option} doctor           # once the services run (docs/install.md)")
    return 1 if failed or ill else 0
