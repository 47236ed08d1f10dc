"""``slurm-elastic init``: write the first configuration, from slurm.conf, clouds and answers."""

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
from slurm_elastic.base.errors import ConfigError, reason_of
from slurm_elastic.base.pages import page
from slurm_elastic.base.units import counted
from slurm_elastic.cli.arguments import DEFAULT_CONFIG
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.operate import doctor
from slurm_elastic.cli.operate.console import plain, say
from slurm_elastic.cli.setting_up import conf, init_make
from slurm_elastic.cli.streams import visible
from slurm_elastic.config import configfile
from slurm_elastic.config.basics.todos import keys_left
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.found import Found, SearchPlace
from slurm_elastic.model.cluster import Location
from slurm_elastic.sandbox.layout import Layout
from slurm_elastic.setup import compose, merge, reach, skeleton
from slurm_elastic.setup.questions import (
    Answers,
    Earlier,
    Question,
    answered,
    first,
    questions,
)
from slurm_elastic.setup.site import SiteFacts, facts
from slurm_elastic.watch.doctor.environment import of_the_units

SLURM_CONF = Path("/etc/slurm/slurm.conf")
BY_HAND = f"{page('configuration-clouds')}; for clouds of other packages their own pages"
_MAX_ANSWERS_BYTES = 65536
NOTHING = "nothing is written"


class _OneCloud(argparse.Action):
    """Refuse a second --cloud: argparse would silently keep only the last one."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        del parser, option_string
        earlier = getattr(namespace, self.dest)
        if earlier is not None:
            raise argparse.ArgumentError(
                self,
                f"found {earlier} and {values}, expected one cloud; run init again for the next "
                "one: it adds to the file",
            )
        setattr(namespace, self.dest, values)


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "init",
        description="Read slurm.conf, look for clouds that this host can reach, ask at most ten "
        "questions, and write a configuration with comments. It is then checked as 'conf show', "
        "'conf check' and 'doctor' do. An existing file is only added to: missing clouds and "
        "pools, and changed answers. Nothing else is changed, and nothing is bought.",
        epilog=examples(
            "slurm-elastic init",
            "slurm-elastic init --yes --output /tmp/first.yaml",
            "slurm-elastic init --make --cloud aws --dry-run",
        ),
    )
    parser.add_argument(
        "--yes", action="store_true",
        help="ask nothing: take every default; public clouds stay closed",
    )  # fmt: skip
    parser.add_argument(
        "--answers", type=Path, metavar="FILE",
        help="take answers from this YAML file, and defaults for missing answers",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, metavar="FILE",
        help="write to this file (default: the configuration, see --config)",
    )  # fmt: skip
    parser.add_argument(
        "--slurm-conf", type=Path, metavar="FILE",
        help=f"the site's slurm.conf (default: $SLURM_CONF, else {SLURM_CONF})",
    )  # fmt: skip
    init_make.add_options(parser)
    parser.add_argument(
        "--cloud", metavar="NAME", action=_OneCloud,
        help="make a skeleton for this kind of cloud (aws, azure, openstack, opennebula, docker, "
        "libvirt, redfish), also without an account, an image or credentials: each missing value "
        "is a TODO with the next command. With --make or --unmake: the cloud of the "
        "configuration that is meant",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the file. Exit 1 if one of its checks fails."""
    if init_make.is_meant(args):
        return init_make.run(args)
    output = Path(args.output or args.config)
    before = _existing_text(output)
    _require_our_place(output)
    try:
        text = _configuration(args, output, before)
        print()
        if text == before:
            say(f"{output} has all clouds and answers already; nothing is changed.")
        else:
            for directory in _write(output, text, is_new=before is None):
                print(f"made directory {directory}")
            print(f"{'changed' if before else 'wrote'} {output}")
        return _checked(output)
    except KeyboardInterrupt:
        written = _existing_text(output) != before
        outcome = f"{output} is written; its checks are not finished" if written else NOTHING
        print(f"\nstopped; {outcome}", file=sys.stderr)
        raise


def _existing_text(path: Path) -> str | None:
    """The text of the existing file, or None. ConfigError if it is no regular file or no text."""
    if not path.exists():
        return None
    if not path.is_file():
        raise ConfigError(f"{path}: expected a file, no device and no pipe; {NOTHING}")
    try:
        return configfile.text(path)
    except ConfigError as error:
        raise ConfigError(f"{error}; nothing is changed") from None


def _require_our_place(output: Path) -> None:
    """ConfigError if the checks of the written file would refuse its place."""
    if os.geteuid() != 0:
        return
    try:
        configfile.require_ours(output)
    except ConfigError as error:
        raise ConfigError(f"{error}; {NOTHING}") from None


def _configuration(args: argparse.Namespace, output: Path, before: str | None) -> str:
    """The text of the configuration, from the site, its clouds and the answers."""
    conf_file = args.slurm_conf or Path(os.environ.get("SLURM_CONF") or SLURM_CONF)
    # A link stays a link: Slurm looks for includes and job_submit.lua beside the link.
    site = facts(conf_file.absolute())
    site = replace(site, head_flaw=reach.head_flaw(site.head))
    if sandbox := _sandbox_of_this_shell():
        say(
            f"This is the shell of the sandbox in {sandbox}. Its variables hide your clouds; run "
            "init in a new shell to find them."
        )
    is_whole = args.cloud is None
    existing = configfile.parse(before, str(output), whole=is_whole) if before is not None else None
    say(
        f"{site.conf}: cluster {site.cluster}, {counted(site.nodes, 'node')}, most of "
        f"{site.cpus} cpus and {site.memory} MiB; partition {site.partition or '(none)'}; "
        f"auth/{site.auth}; {site.accounting}; SlurmUser {site.user}"
    )
    if site.gres:
        say(
            f"Nodes of this site have {', '.join(site.gres)}. The new pools have none: jobs that "
            f"ask for it do not burst until you add a pool with gres ({page('gpus')})."
        )
    kinds = table()
    with of_the_units():  # credentials may be named only in the units' environment
        place = SearchPlace(home=Path.home(), environment=os.environ)
        clouds_found = reach.look(kinds, place, site.user, args.cloud)
    if args.cloud is not None:
        clouds_found = (skeleton.completed(kinds, args.cloud, clouds_found),)
    clouds = tuple(skeleton.with_names(cloud, site) for cloud in _renamed(clouds_found, site))
    _show_found(clouds)
    if is_whole and (not_found := reach.not_found(kinds, clouds)):
        say(f"Not found here; write by hand if you need it: {', '.join(not_found)} ({BY_HAND})")
    earlier = merge.earlier(existing, clouds) if existing else None
    if existing is None:
        _expect_a_cloud(clouds)
    else:
        say(f"{output} exists: only new parts are added to it, and its values are the defaults.")

    def merged(answers: Answers) -> merge.ConfigMerge:
        return merge.ConfigMerge(
            before or "", str(output), compose.chosen(clouds, answers), site, answers
        )

    def new(answers: Answers) -> str:
        return compose.checked(site, clouds, answers, str(output))

    answers = _answers(args, site, clouds, earlier, new if before is None else merged)
    for line in (*compose.differs(clouds, answers), *compose.head_steps(site, clouds, answers)):
        say(line)
    return new(answers) if before is None else merged(answers).text


def _sandbox_of_this_shell() -> Path | None:
    """The directory of the sandbox whose ``env`` this shell has."""
    conf = os.environ.get("SLURM_CONF")
    for parent in Path(conf).parents if conf else ():
        layout = Layout(dir=parent)
        if layout.marker.exists():
            return parent
    return None


def _expect_a_cloud(clouds: Sequence[Found]) -> None:
    """ConfigError if the site has clouds, but none can be used yet.

    The file would get a rehearsal cloud instead, which would hide that.
    """
    if any(cloud.usable for cloud in clouds):
        return
    lacking = [cloud.name for cloud in clouds if cloud.lacking]
    if lacking:
        names = ", ".join(lacking)
        raise ConfigError(f"no cloud can be used yet: do first the steps of {names}; {NOTHING}")
    say("No cloud can be used yet: the file gets one in memory, closed, to rehearse with.")


def _renamed(clouds: Sequence[Found], site: SiteFacts) -> tuple[Found, ...]:
    """Rename each cloud that has the name of a partition or node of the site."""
    return tuple(
        replace(cloud, name=f"{cloud.name}-cloud") if cloud.name in site.taken else cloud
        for cloud in clouds
    )


def _show_found(clouds: Sequence[Found]) -> None:
    """Print each cloud, whether it is usable, what was found, and the step that would enable it."""
    shown = Table(box=None, pad_edge=False, show_edge=False)
    for title in ("cloud", "usable", "found"):
        shown.add_column(title, overflow="fold")
    for cloud in clouds:
        public = " (public)" if cloud.location is Location.PUBLIC else ""
        types = f"; {counted(len(cloud.types), 'type')}" if cloud.types and not cloud.sized else ""
        usable = "to do" if cloud.todos else "yes" if cloud.usable else "no"
        shown.add_row(f"{cloud.name}{public}", usable, visible(f"{cloud.what}{types}"))
        if cloud.enable:
            shown.add_row("", "", visible(f"do: {cloud.enable}"))
    print()
    plain().print(shown)


def _answers(
    args: argparse.Namespace,
    site: SiteFacts,
    clouds: Sequence[Found],
    earlier: Earlier | None,
    rules: Callable[[Answers], object],
) -> Answers:
    """Ask all questions, or take their answers from a file or the defaults.

    Each answer decides which questions follow. Raises ConfigError for a wrong answer of a file, or
    if there is no terminal to ask at.
    """
    previous = earlier or Earlier()
    file_answers = _read_answers(args.answers) if args.answers is not None else {}
    asks = not args.yes and args.answers is None
    if asks and not sys.stdin.isatty():
        raise ConfigError("this is no terminal: add --yes or --answers FILE")

    def answer(question: Question, so_far: Answers) -> Answers:
        if asks:
            return _ask(question, so_far, rules)
        return _read(question, file_answers, so_far, rules, args.answers or "--yes")

    answers = previous.answers
    for question in first(clouds, previous):
        answers = answer(question, answers)
    open_questions = questions(site, compose.named(clouds, answers), earlier)
    if "accounts" in file_answers and any(question.key == "groups" for question in open_questions):
        raise ConfigError(
            f"{args.answers}: accounts: found names of accounts, expected groups: at this site "
            "users may type any account name"
        )
    for question in open_questions:
        answers = answer(question, answers)
    return answers


def _read(
    question: Question, file_answers: Mapping[str, str], so_far: Answers,
    rules: Callable[[Answers], object], source: Path | str,
) -> Answers:  # fmt: skip
    """The answer from the file, or the default. ConfigError if it is wrong."""
    text = file_answers.get(question.key, question.default)
    try:
        answers = answered(question, text, so_far, rules)
    except ValueError as error:
        raise ConfigError(f"{source}: {question.key}: {error}; {NOTHING}") from None
    if (doubt := reach.doubt(so_far, answers)) and text != question.default:
        say(f"{source}: {question.key}: {doubt}")
    return answers


def _read_answers(path: Path) -> Mapping[str, str]:
    try:
        with path.open(encoding="utf-8") as file:
            document = yaml.safe_load(file.read(_MAX_ANSWERS_BYTES))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {reason_of(error)}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not YAML: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected a mapping of answers by their keys")
    strange = sorted(str(key) for key in document if key not in _KEYS)
    if strange:
        expected = ", ".join(_KEYS)
        raise ConfigError(f"{path}: found {', '.join(strange)}, expected one of {expected}")
    return {key: _as_typed(value) for key, value in document.items()}


_KEYS = (
    "clouds", "hosts", "accounts", "groups", "cap", "shape", "spot", "max_time",
    "default_partition", "head", "checkpoints",
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
    """Ask until the answer is valid. An empty line takes the default.

    An answer that this host does not know, such as an unknown group, must be typed twice.
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
            answers = answered(question, text, so_far, rules)
        except ValueError as error:
            say(f"  {error}")
            continue
        doubt = reach.doubt(so_far, answers) if text != doubted else ""
        if not doubt:
            return answers
        say(f"  {doubt}: correct it, or type it again")
        doubted = text


def _write(path: Path, text: str, *, is_new: bool = True) -> list[Path]:
    """Write the file completely or not at all. Returns the directories that were created."""
    # Not by a look at the path: a link may have taken its place since.
    if not is_new:
        configfile.rewrite(path, text)
        return []
    created = writing.make_directories(path.absolute().parent)
    writing.replace(path, text.encode(), 0o644)
    return created


def _checked(path: Path) -> int:
    """Run the checks and print the next commands.

    ``conf show`` is one line here: its pages of output would hide the rest.
    """
    # Machines carry cluster.uuid of the file: a second identity beside it would be refused.
    if configfile.read(path).cluster.uuid is None:
        configfile.ensure_uuid(path)
        print(f"wrote {path.parent / configfile.UUID_FILE}, which marks this cluster's machines")
    option = "" if path == Path(DEFAULT_CONFIG) else f" --config {path}"
    try:
        config = configfile.load(path, whole=True)
    except ConfigError as error:
        return _unfinished(path, option, error)
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
    ill = doctor.examine(path, quick=True)
    print("next:")
    if failed:
        print(f"  slurm-elastic{option} conf check       # after you have fixed the above")
    if ill:
        print(f"  slurm-elastic{option} doctor --quick   # after you have fixed its findings")
    print(f"  slurm-elastic{option} conf install     # as root: puts it into slurm.conf")
    if not (failed or ill):
        print(f"  slurm-elastic{option} doctor           # with the services: {page('install')}")
    return 1 if failed or ill else 0


def _unfinished(path: Path, option: str, error: ConfigError) -> int:
    """Print the to-dos of a skeleton. Raises ``error`` if the file has none."""
    config = configfile.load(path)
    if not any(keys_left(cloud) for cloud in config.clouds):
        raise error
    print("to do:")
    for problem in error.problems:
        say(f"  {problem}")
    print("next:")
    print(f"  slurm-elastic{option} conf check       # lists the remaining steps")
    return 0
