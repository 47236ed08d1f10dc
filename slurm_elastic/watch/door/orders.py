"""Operators' orders: who may give them, which are refused, and how they are written down, with who
gave them, in one transaction. Each kind of order has an entry in ``RULES``.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import sqlite3
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, NamedTuple

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.config import Config
from slurm_elastic.config.limit_changes import checked, configured, scope_named
from slurm_elastic.features.directives import subjects_of
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.directive import (
    Departure,
    Directive,
    LimitChange,
    Pause,
    bound,
    clock,
    told,
)
from slurm_elastic.state.ledger import Decision, Ledger
from slurm_elastic.state.store.shared_journal import is_there
from slurm_elastic.watch.door.questions import DirectAsk, EndAsk, Order

LONGEST = 366 * 86400.0  # how many seconds a directive may hold, or lie ahead
MAX_TEXT = 200  # characters of a text that a person gives


# who may


def may_order(
    uid: int,
    groups: Iterable[int],
    trusted: Container[int],
    operators: Callable[[], frozenset[int]],
) -> bool:
    """Whether that user of these groups may: who is ``trusted`` (root and SlurmUser), and members
    of ``operators``.
    """
    # In this order, as to look groups up may hang.
    return uid in trusted or not operators().isdisjoint(groups)


def no_right(config: Config) -> str:
    """The sentence for those who may give no orders."""
    groups = ", ".join(config.users.operators)
    members = f"members of {groups}" if groups else "members of groups in users.operators (none)"
    return f"this is for root, {config.slurm.user} and {members}"


def name_of(uid: int) -> str:
    """The user's name; ``uid N`` if this host knows none."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"uid {uid}"


def own_name() -> str:
    """Who runs this process, and for whom by sudo."""
    name, behind = name_of(os.getuid()), os.environ.get("SUDO_USER", "")
    # Only root could make that up.
    return f"{name} ({behind})" if os.getuid() == 0 and behind.isprintable() and behind else name


# what is refused


class Rule(NamedTuple):
    """``check`` raises ConfigError for one without sense; ``then``: what is so when it ends."""

    check: Callable[[Config, Any], None]
    then: Callable[[Config, Any], str] = lambda *_: "as before"


def _of_machines(scope: str) -> None:
    if scope and not scope.startswith(("cloud:", "pool:")):
        raise ConfigError(f"scope is {scope!r}, expected the cluster, a cloud or a pool")


def _check_limit(config: Config, word: LimitChange) -> None:
    configured(config, word.scope, word.key)
    checked(word.scope, word.key, word.value)


def _then_limit(config: Config, word: LimitChange) -> str:
    own = configured(config, word.scope, word.key)
    return f"the configuration's value: {bound(word.key, own)}"


def _check_departure(config: Config, word: Departure) -> None:
    _of_machines(word.scope)
    clouds = [cloud.name for cloud in config.clouds]
    if word.to and (word.to not in clouds or not word.scope.startswith("cloud:")):
        raise ConfigError(f"a cloud is emptied to another one of {', '.join(clouds)}")
    ours = {node for pool in config.pools for node in expand(pool.nodes)}
    strange = [node for node in word.nodes if node not in ours]
    if strange:
        raise ConfigError(f"these are no nodes of pools: {compress(strange)[:MAX_TEXT]!r}")
    if not word.nodes:
        raise ConfigError("without nodes nothing leaves")
    if word.verb not in word.VERBS:
        found = word.verb[:MAX_TEXT]
        raise ConfigError(f"verb is {found!r}, expected one of {', '.join(word.VERBS)}")
    # An order about nodes names them there.
    _check_text("about", word.about, max(MAX_TEXT, len(compress(word.nodes))))
    _check_text("image", word.image)
    if word.unavailable is not None and word.unavailable < 1:
        raise ConfigError(f"unavailable is {word.unavailable}, expected a number from 1 on")


RULES: Mapping[type, Rule] = {
    Pause: Rule(lambda _, word: _of_machines(word.scope)),
    LimitChange: Rule(_check_limit, _then_limit),
    Departure: Rule(_check_departure),
}


def _check_text(name: str, text: str, most: int = MAX_TEXT) -> None:
    """Refuse text of more than one line, or with characters that do something to a terminal."""
    if len(text) > most:
        raise ConfigError(f"{name} has {len(text)} characters, expected {most} at most")
    if not text.isprintable():
        raise ConfigError(f"{name} is {text!r}, expected characters that can be printed")


def _check(config: Config, ask: DirectAsk, now: float) -> None:
    _check_text("reason", ask.reason)
    scope = scope_named(config, ask.word.scope or "cluster", payers=True)
    if ask.word.scope not in ("", scope):
        raise ConfigError(f"scope is {ask.word.scope!r}, expected {scope!r}")
    RULES[type(ask.word)].check(config, ask.word)
    if ask.seconds is not None and not 0 < ask.seconds <= LONGEST:
        raise ConfigError("it may hold for more than nothing and at most 366 days")
    if ask.starts is not None and not ask.starts <= now + LONGEST:
        raise ConfigError("it may begin at most 366 days from now")


# how they are written down


def carry_out(config: Config, ask: Order, who: str, now: float) -> tuple[str, ...]:
    """Write the order down, and say what it does, a line each. Raises ConfigError for what the
    configuration does not have, SlurmElasticError if the ledger cannot be written.
    """
    path = config.state / "ledger.db"
    if not is_there(path):
        raise SlurmElasticError(f"there is no ledger at {path}: slurm-elasticd has never run")
    try:
        with contextlib.closing(Ledger(path)) as ledger:
            if isinstance(ask, EndAsk):
                return _end(config, ledger, ask, who, now)
            return _direct(config, ledger, ask, who, now)
    except sqlite3.Error as error:
        raise SlurmElasticError(f"the ledger {path} cannot be written: {error}") from error


def _direct(
    config: Config, ledger: Ledger, ask: DirectAsk, who: str, now: float
) -> tuple[str, ...]:
    _check(config, ask, now)
    word, starts = ask.word, now if ask.starts is None else max(ask.starts, now)
    until = None if ask.seconds is None else starts + ask.seconds
    reason = " ".join(ask.reason.split())
    new = Directive(word=word, who=who, since=now, starts=starts, until=until, reason=reason)
    about = type(word), word.place
    before = [d for d in ledger.directives.all() if (type(d.word), d.word.place) == about]
    with ledger.together():
        for one in before:
            ledger.directives.end(one.number)
        ledger.directives.give(new)
        _record(config, ledger, "directed", new, told(new, now), now)
    then = RULES[type(word)].then(config, word)
    alone = "they have left, or " if word.gets_done else ""
    end = f"until: {alone}{word.ended_by}"
    after = end if until is None else f"from {clock(until)} on: {then}"
    return (*(f"no longer: {told(one, now)}" for one in before), told(new, now), after)


def _end(config: Config, ledger: Ledger, ask: EndAsk, who: str, now: float) -> tuple[str, ...]:
    lines = []
    for one in ledger.directives.all():
        if one.number in ask.numbers and ledger.directives.end(one.number):
            line = f"no longer: {told(one, now)}"
            _record(config, ledger, "directive-ended", one, f"{line}; ended by {who}", now)
            lines.append(line)
    return tuple(lines)


def _record(
    config: Config, ledger: Ledger, kind: str, one: Directive, reason: str, now: float
) -> None:
    subjects = subjects_of(config, one)
    ledger.decisions.record(
        Decision(
            at=now,
            correlation=one.correlation,
            kind=kind,
            subjects=subjects,
            cause=Quoted(text=reason),
        )
    )
