"""The actions of the page: each is a command, with the command's own parser, preview and rights.

The page and the command line therefore refuse, show and record the same.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import logging
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec
from msgspec import Struct

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.cli.helptext import Command
from slurm_elastic.cli.orders import (
    clear,
    departure_orders,
    drain,
    limit,
    migrate,
    pause,
    replace,
    resume,
    save_orders,
)
from slurm_elastic.cli.orders.giving_orders import Plan, is_alive, known_facts
from slurm_elastic.config import Config
from slurm_elastic.config.fresh import load_or_installed
from slurm_elastic.config.limit_changes import KEYS, unambiguous_names
from slurm_elastic.watch.door.client import facts_of, order
from slurm_elastic.watch.door.questions import trusted
from slurm_elastic.watch.door.rights import (
    NoRightError,
    Person,
    require_operator,
    require_trusted,
)
from slurm_elastic.watch.door.saves import SaveLimit
from slurm_elastic.watch.view import Facts
from slurm_elastic.watch.web.actions import ActionRequest, FormField, PageAction, Preview
from slurm_elastic.watch.web.visitors import page_owner

log = logging.getLogger(__name__)

SAVE = "save"
_RIGHTS: Mapping[str, Callable[[Config, Person], None]] = {"clear": require_trusted}
_PLANS: Mapping[str, tuple[Plan, Callable[[Config, float], Facts]]] = {
    "pause": (pause.plan, facts_of),
    "resume": (resume.plan, facts_of),
    "limit": (limit.plan, facts_of),
    "drain": (functools.partial(departure_orders.plan_leaving, "drain"), departure_orders.read),
    "replace": (functools.partial(departure_orders.plan_leaving, "replace"), departure_orders.read),
    "migrate": (migrate.plan, departure_orders.read),
}
_MODULES = {
    "pause": pause, "resume": resume, "limit": limit, "drain": drain, "replace": replace,
    "migrate": migrate, "clear": clear,
}  # fmt: skip
_WORDS = {SAVE: ("ckpt", "now")}
"""The commands with another name than their action."""

_FOR = FormField(name="for", label="For", hint="such as 2h; empty: until you end it")
_AT = FormField(
    name="at",
    label="Begin",
    hint="22:00, 2026-11-30T22:00 (time of the head) or now+2h; empty: now",
)
_REASON = FormField(name="reason", label="Reason", hint="everybody sees it")
_AT_A_TIME = FormField(
    name="max-unavailable", label="At most at a time", kind="number", hint="machines; empty: all"
)
_AGGRESSIVE = FormField(
    name="aggressive", label="Save and requeue their jobs", kind="flag",
    hint="jobs that cannot be saved start over",
)  # fmt: skip
_AFTER_JOBS = FormField(
    name="after-jobs", label="Let running jobs end first", kind="flag",
    hint="otherwise they are saved and requeued, or start over",
)  # fmt: skip
_START_REPLACEMENTS = FormField(
    name="start-replacements", label="Start as many machines there at once", kind="flag",
    hint="each is kept for an hour without a job",
)  # fmt: skip


class PageActions:
    """The actions with the configuration in ``file``, which is read again for each request."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._save_limit = SaveLimit(time.time)
        # Every visit lists the actions. Only a form, which is rarer, needs the newest file.
        self._listed = TtlCache[None, Config]()

    def offered(self, person: Person) -> Sequence[PageAction]:
        """All actions, each with the reason why this person may not do it."""
        config = self._listed.get(None, lambda: _read(self._file), ttl_s=LISTED_FOR_S)
        return [
            msgspec.structs.replace(action, refusal=_refusal(config, action.name, person))
            for action in _actions(config)
        ]

    def request(self, name: str, values: Mapping[str, str], person: Person) -> ActionRequest:
        """ConfigError for wrong values, NoRightError if the person may not do it."""
        config = _read(self._file)
        _require(config, name, person)
        (action,) = (each for each in _actions(config) if each.name == name)
        argv = _arguments(action, values)
        args = _parsed(name, argv)
        command = shlex.join(["slurm-elastic", *_WORDS.get(name, (name,)), *argv])
        request = _Request(self._file, name, args, command, person, time.time())
        if name == "clear":
            return _Clear(request)
        return _Save(request, self._save_limit) if name == SAVE else _Order(request)


def _read(file: Path) -> Config:
    """The configuration. If its file is wrong, the configuration of the last ``conf install``:
    machines are still paid. The page itself shows that the file is wrong.
    """
    return load_or_installed(file, log.info)


def _actions(config: Config) -> tuple[PageAction, ...]:
    """All actions, with the clouds and pools of this configuration as suggestions."""
    clouds = tuple(cloud.name for cloud in config.clouds)
    places = unambiguous_names(config)
    named = tuple(dict.fromkeys((*clouds, *(pool.name for pool in config.pools))))
    subject = FormField(
        name="subject", label="Nodes, pool or cloud", is_required=True, choices=places,
        hint="such as pub[1-4]",
    )  # fmt: skip
    return (
        PageAction(
            name="pause", title="Pause",
            summary="Start no new machines in a cloud or a pool, or anywhere. Running machines and "
            "their jobs stay.",
            fields=(
                FormField(name="scope", label="Cloud or pool", hint="empty: the whole cluster",
                          choices=places),
                _FOR, _REASON,
            ),
        ),
        PageAction(
            name="resume", title="Resume",
            summary="End a pause, a drain, a replacement or a migration.",
            fields=(
                FormField(name="subject", label="Cloud, pool or nodes", choices=places,
                          hint="as the order named them; empty: the cluster"),
                FormField(name="all", label="End all such orders", kind="flag"),
                _REASON,
            ),
        ),
        PageAction(
            name="limit", title="Change a limit",
            summary="Change a cap on machines or dollars at once. Running machines are not ended.",
            fields=(
                FormField(name="scope", label="Of", is_required=True,
                          choices=("cluster", *places, *config.policies.payer_budgets)),
                FormField(name="key", label="Limit", choices=KEYS, is_open=False),
                FormField(name="value", label="Value", is_required=True,
                          hint="a number, or reset for the configured value"),
                _FOR, _REASON,
            ),
        ),
        PageAction(
            name="drain", title="Drain",
            summary="End machines when their jobs have ended, and start no new ones there.",
            fields=(subject, _AGGRESSIVE, _AT_A_TIME, _AT, _FOR, _REASON),
        ),
        PageAction(
            name="replace", title="Replace",
            summary="End today's machines when their jobs have ended; new ones start when they are "
            "needed.",
            fields=(subject, _AGGRESSIVE, _AT_A_TIME, _AT, _REASON),
        ),
        PageAction(
            name="migrate", title="Migrate",
            summary="Empty nodes, a pool or a cloud: their jobs continue in another cloud.",
            fields=(
                subject,
                FormField(name="to", label="To", is_required=True, choices=clouds, is_open=False),
                _AFTER_JOBS, _START_REPLACEMENTS, _AT_A_TIME, _AT, _FOR, _REASON,
            ),
        ),
        PageAction(
            name="clear", title="Clear",
            summary="End cool-downs and pauses after failed boots, so that they are tried again at "
            "once.",
            fields=(
                FormField(name="subjects", label="Offers, pools, clouds or jobs", choices=named,
                          hint="with blanks between them, as status shows them; job:17 for a job"),
                FormField(name="gone", label="These machines of a former cloud are gone",
                          kind="flag", hint="stop counting their cost"),
                FormField(name="all", label="Everything", kind="flag"),
            ),
        ),
        PageAction(
            name=SAVE, title="Save a job",
            summary="Save a running job now. The job continues afterwards.",
            fields=(FormField(name="job", label="Job", kind="number", is_required=True),),
        ),
    )  # fmt: skip


LISTED_FOR_S = 2.0
"""The list of actions uses one reading of the configuration for so long."""
_POSITIONAL = ("scope", "subject", "key", "value", "subjects", "job")
"""Fields that fill an argument without a name."""


def _arguments(action: PageAction, values: Mapping[str, str]) -> list[str]:
    """The arguments of the command. No value can become an option, whatever character it begins
    with.
    """
    options: list[str] = []
    positional: list[str] = []
    for field in action.fields:
        value = values.get(field.name, "")
        if not value:
            continue
        if field.name in _POSITIONAL:
            positional += value.split() if field.name == "subjects" else [value]
        else:
            options.append(f"--{field.name}" if field.kind == "flag" else f"--{field.name}={value}")
    is_marked = any(value.startswith("-") for value in positional)
    return [*options, *(["--"] if is_marked else []), *positional]


class _PageParser(Command):
    """Raises an error for a wrong value, in place of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _parsed(name: str, argv: Sequence[str]) -> argparse.Namespace:
    parser = _PageParser(prog="slurm-elastic")
    subparsers = parser.add_subparsers(dest="command", parser_class=_PageParser)
    if name == SAVE:
        save_orders.add(subparsers.add_parser(name))
    else:
        _MODULES[name].add(subparsers)
    args = parser.parse_args([name, *argv])
    # A preview shows the lines of a dry run. The page has a button in place of --yes.
    args.dry_run, args.yes = True, False
    return args


def _require(config: Config, name: str, person: Person) -> None:
    """NoRightError if the person may not do this, or this page cannot do it for the person."""
    if name != SAVE:  # whose job it is, is known later
        _RIGHTS.get(name, require_operator)(config, person)
    if os.geteuid() not in trusted(config) and person.uid != os.geteuid():
        raise NoRightError(
            f"this page runs as {page_owner()}, so only {page_owner()} can act on it"
        )


def _refusal(config: Config, name: str, person: Person) -> str:
    try:
        _require(config, name, person)
    except NoRightError as error:
        return str(error)
    return ""


class _Request(Struct, frozen=True):
    """The arguments of a command, the person, and the time at which the person asked."""

    file: Path
    name: str
    args: argparse.Namespace
    command: str
    person: Person
    asked_at: float

    def allowed(self) -> Config:
        """The configuration as it is now. NoRightError if the person may no longer do this."""
        config = _read(self.file)
        _require(config, self.name, self.person)
        return config

    def digest(self, *facts: object) -> str:
        """A digest of the facts on which a preview rests."""
        facts = (self.command, self.person.uid, *facts)
        return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()


class _Order:
    """An order to slurm-elasticd."""

    def __init__(self, request: _Request) -> None:
        self._request = request

    def preview(self) -> Preview:
        """The text of ``--dry-run``, and a digest of its basis and of all orders in force."""
        request, now = self._request, time.time()
        config = request.allowed()
        plan, read = _PLANS[request.name]
        facts = known_facts(config, read, now)
        # As of the time of the request: "22:00" and "at most $3 from now" stay the same.
        planned = plan(request.args, config, msgspec.structs.replace(facts, now=request.asked_at))
        orders = sorted(each.number for each in facts.directives if each.holds(now))
        self._planned = config, facts, planned
        return Preview(
            command=request.command,
            lines=planned.preview,
            question=planned.question,
            digest=request.digest(planned.ask, planned.basis, planned.question, orders),
        )

    def carry_out(self) -> Sequence[str]:
        """Give the order of the last preview."""
        config, facts, planned = self._planned
        lines = order(config, planned.ask, time.time(), self._request.person.name)
        if is_alive(config, facts):
            return lines
        return (*lines, "slurm-elasticd is NOT RUNNING: it does this when it starts")


class _Clear:
    """Entries of the ledger that end."""

    def __init__(self, request: _Request) -> None:
        self._request = request

    def _cleared(self, *, dry: bool) -> tuple[Config, argparse.Namespace, tuple[str, ...]]:
        request = self._request
        config = request.allowed()
        if misuse := clear.wrong_use(request.args):
            raise ConfigError(misuse)
        args = argparse.Namespace(**{**vars(request.args), "dry_run": dry})
        return config, args, clear.carry_out(args, config, request.person, time.time())

    def preview(self) -> Preview:
        """The entries, which are also the basis."""
        _, _, entries = self._cleared(dry=True)
        if not entries:
            raise SlurmElasticError("nothing is cooling down or paused there")
        return Preview(
            command=self._request.command,
            lines=tuple(f"would be cleared: {entry}" for entry in entries),
            digest=self._request.digest(entries),
        )

    def carry_out(self) -> Sequence[str]:
        """Clear the entries that the preview showed."""
        config, args, entries = self._cleared(dry=False)
        return (*(f"cleared: {entry}" for entry in entries), clear.outlook(args, config, entries))


class _Save:
    """A save of a job."""

    def __init__(self, request: _Request, limit: SaveLimit) -> None:
        self._request, self._limit = request, limit

    def preview(self) -> Preview:
        """How the job is saved; the run of the job is the basis."""
        request = self._request
        config = request.allowed()
        planned = save_orders.plan(config, request.args.job, request.person)
        self._planned = config, planned
        return Preview(
            command=request.command,
            lines=planned.preview,
            digest=request.digest(planned.basis),
        )

    def carry_out(self) -> Sequence[str]:
        """Ask slurm-elastic-ckptman to do the save of the last preview."""
        return save_orders.carry_out(*self._planned, self._limit)
