"""Operators' orders, checked and written down, with who gave them, in one transaction."""

from __future__ import annotations

import contextlib
import os
import pwd
import sqlite3

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.config import Config
from slurm_elastic.config.changed import checked, configured, scope_named
from slurm_elastic.controller.directives import correlation_of, subjects_of
from slurm_elastic.model.directive import (
    VERBS,
    Departure,
    Directive,
    LimitChange,
    Word,
)
from slurm_elastic.policies.launch.directives import clock, told
from slurm_elastic.state.ledger import Decision, Ledger
from slurm_elastic.watch.door.asks import DirectAsk, EndAsk, Order

LONGEST = 366 * 86400.0
"""Seconds that a directive may hold, or lie ahead."""
MAX_TEXT = 200
"""Characters of a text that a person gives."""
_OF_MACHINES = ("cloud:", "pool:")


def no_right(config: Config) -> str:
    """The sentence for who may give no orders."""
    groups = ", ".join(config.users.operators)
    members = f"members of {groups}" if groups else "members of groups in users.operators (none)"
    return f"this is for root, {config.slurm.user} and {members}"


def name_of(uid: int) -> str:
    """The user's name; ``uid N`` where this host knows none."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"uid {uid}"


def own_name() -> str:
    """Who runs this process, and for whom by sudo, which root alone could make up."""
    name, behind = name_of(os.getuid()), os.environ.get("SUDO_USER", "")
    return f"{name} ({behind})" if os.getuid() == 0 and behind.isprintable() and behind else name


def carry_out(config: Config, ask: Order, who: str, now: float) -> tuple[str, ...]:
    """Write the order down, and say what it does, a line each. Raises ConfigError for what the
    configuration does not have, SlurmElasticError where the ledger cannot be written.
    """
    path = config.state / "ledger.db"
    if not path.exists():
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
    starts = now if ask.starts is None else max(ask.starts, now)
    new = Directive(
        word=ask.word,
        who=who,
        since=now,
        starts=starts,
        until=None if ask.seconds is None else starts + ask.seconds,
        reason=" ".join(ask.reason.split()),
    )
    before = [one for one in ledger.directives() if _is_replaced(one.word, new.word)]
    with ledger.together():
        for one in before:
            ledger.end_directive(one.number)
        ledger.direct(new)
        _record(config, ledger, "directed", new, told(new, now), now)
    lines = [told(new, now), _end_of(config, new)]
    return (*(f"no longer: {told(one, now)}" for one in before), *lines)


def _end_of(config: Config, one: Directive) -> str:
    word = one.word
    if isinstance(word, LimitChange):
        own = configured(config, word.scope, word.key)
        text = "no limit" if own is None else f"{own:g}"
        then = f"the configuration's value: {text}"
    else:
        then = "as before"
    if one.until is not None:
        return f"from {clock(one.until)} on: {then}"
    return f"until it is ended; then: {then}"


def _check(config: Config, ask: DirectAsk, now: float) -> None:
    word = ask.word
    _check_text("reason", ask.reason)
    scope = scope_named(config, word.scope or "cluster")
    if isinstance(word, LimitChange):
        configured(config, scope, word.key)
        checked(scope, word.key, word.value)
    elif scope and not scope.startswith(_OF_MACHINES):
        raise ConfigError(f"scope is {scope!r}, expected the cluster, a cloud or a pool")
    if word.scope not in ("", scope):
        raise ConfigError(f"scope is {word.scope!r}, expected {scope!r}")
    if isinstance(word, Departure):
        _check_departure(config, word)
    if ask.seconds is not None and not 0 < ask.seconds <= LONGEST:
        raise ConfigError("it may hold for more than nothing and at most 366 days")
    if ask.starts is not None and not ask.starts <= now + LONGEST:
        raise ConfigError("it may begin at most 366 days from now")


def _check_text(name: str, text: str, most: int = MAX_TEXT) -> None:
    """One line that shows itself on a terminal, and changes nothing there."""
    if len(text) > most:
        raise ConfigError(f"{name} has {len(text)} characters, expected {most} at most")
    if not text.isprintable():
        raise ConfigError(f"{name} is {text!r}, expected characters that can be printed")


def _check_departure(config: Config, word: Departure) -> None:
    clouds = [cloud.name for cloud in config.clouds]
    if word.to and (word.to not in clouds or not word.scope.startswith("cloud:")):
        raise ConfigError(f"a cloud is emptied to another one of {', '.join(clouds)}")
    ours = {node for pool in config.pools for node in expand(pool.nodes)}
    strange = [node for node in word.nodes if node not in ours]
    if strange:
        raise ConfigError(f"these are no nodes of pools: {compress(strange)[:MAX_TEXT]!r}")
    if not word.nodes:
        raise ConfigError("without nodes nothing leaves")
    if word.verb not in VERBS:
        found = word.verb[:MAX_TEXT]
        raise ConfigError(f"verb is {found!r}, expected one of {', '.join(VERBS)}")
    # As the nodes are written where it is about nodes.
    _check_text("about", word.about, max(MAX_TEXT, len(compress(word.nodes))))
    _check_text("image", word.image)
    if word.unavailable is not None and word.unavailable < 1:
        raise ConfigError(f"unavailable is {word.unavailable}, expected a number from 1 on")


def _is_replaced(old: Word, new: Word) -> bool:
    """Whether ``new`` takes the place of ``old``: of one kind, about the same thing."""
    if isinstance(old, LimitChange) and isinstance(new, LimitChange):
        return (old.scope, old.key) == (new.scope, new.key)
    if isinstance(old, Departure) and isinstance(new, Departure):
        return (old.verb, old.about, old.image) == (new.verb, new.about, new.image)
    return type(old) is type(new) and old.scope == new.scope


def _end(config: Config, ledger: Ledger, ask: EndAsk, who: str, now: float) -> tuple[str, ...]:
    lines = []
    for one in ledger.directives():
        if one.number in ask.numbers and ledger.end_directive(one.number):
            line = f"no longer: {told(one, now)}"
            _record(config, ledger, "directive-ended", one, f"{line}; ended by {who}", now)
            lines.append(line)
    return tuple(lines)


def _record(
    config: Config, ledger: Ledger, kind: str, one: Directive, reason: str, now: float
) -> None:
    correlation, subjects = correlation_of(one), subjects_of(config, one)
    ledger.record(
        Decision(at=now, correlation=correlation, kind=kind, subjects=subjects, reason=reason)
    )
