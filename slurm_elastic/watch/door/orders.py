"""Operators' orders: who may give them, which are refused, and how the ledger records them.

An order and its giver are recorded in one transaction. Each kind of order has an entry in
``RULES``.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import sqlite3
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.hostlist import HostlistError, compress, expand
from slurm_elastic.config import Config
from slurm_elastic.config.limit_changes import checked, clouds_of, configured, scope_named
from slurm_elastic.features.orders.directives import subjects_of
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.directive import (
    Departure,
    Directive,
    LimitChange,
    Pause,
    bound,
    clock,
    describe,
    given_by,
    replaced_orders,
)
from slurm_elastic.state.ledger import Decision, Ledger
from slurm_elastic.state.store.shared_journal import is_there
from slurm_elastic.state.store.trouble import trouble_of
from slurm_elastic.watch.door.questions import DirectAsk, EndAsk, Order, unpacked

MAX_ORDER_S = 366 * 86400.0  # an order may hold, or begin in the future, for at most this long (s)
MAX_TEXT = 200  # most characters of a text that a person gives


# who may


def may_order(
    uid: int,
    groups: Iterable[int],
    trusted: Container[int],
    operators: Callable[[], frozenset[int]],
) -> bool:
    """Whether a user of these groups may give orders.

    Allowed are the ``trusted`` users (root and SlurmUser) and members of ``operators``.
    """
    # Keep this order: a look-up of groups may hang, and root must be able to act.
    return uid in trusted or not operators().isdisjoint(groups)


def no_right(config: Config) -> str:
    """The sentence for users who may not give orders."""
    groups = ", ".join(config.users.operators)
    members = f"members of {groups}" if groups else "members of groups in users.operators (none)"
    return f"this is for root, {config.slurm.user} and {members}"


def name_of(uid: int) -> str:
    """The user's name; ``uid N`` if this host has no such user."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"uid {uid}"


def own_name() -> str:
    """The user of this process, and the user who called sudo."""
    name, behind = name_of(os.getuid()), os.environ.get("SUDO_USER", "")
    # SUDO_USER counts only for root: other users could set it to any name.
    return f"{name} ({behind})" if os.getuid() == 0 and behind.isprintable() and behind else name


# what is refused


class OrderRule(NamedTuple):
    """The rule for a kind of order.

    ``check`` raises ConfigError for an impossible order. ``after_end``: the state after the order's
    end.
    """

    check: Callable[[Config, Any], None]
    after_end: Callable[[Config, Any], str] = lambda *_: "as before"


def _check_scope(scope: str) -> None:
    if scope and not scope.startswith(("cloud:", "pool:")):
        raise ConfigError(f"scope is {scope!r}, expected the cluster, a cloud or a pool")


def _check_limit(config: Config, word: LimitChange) -> None:
    configured(config, word.scope, word.key)
    checked(word.scope, word.key, word.value)


def _after_limit(config: Config, word: LimitChange) -> str:
    configured_value = configured(config, word.scope, word.key)
    return f"the configuration's value: {bound(word.key, configured_value)}"


def _check_departure(config: Config, word: Departure) -> None:
    _check_scope(word.scope)
    clouds = [cloud.name for cloud in config.clouds]
    is_known = word.to in clouds and word.to not in clouds_of(config, word.nodes)
    if word.to and (word.verb != "migrate" or not is_known):
        raise ConfigError(f"machines can be emptied only to another cloud: {', '.join(clouds)}")
    if (word.start_replacements and not word.to) or word.replacements is not None:
        raise ConfigError("replacements are started by slurm-elasticd, in the cloud of a migration")
    own_nodes = {node for pool in config.pools for node in expand(pool.nodes)}
    strange = [node for node in word.nodes if node not in own_nodes]
    if strange:
        raise ConfigError(f"these nodes are in no pool: {compress(strange)[:MAX_TEXT]!r}")
    if not word.nodes:
        raise ConfigError("no nodes are named, so no machine would leave")
    if word.verb not in word.VERBS:
        verb = word.verb[:MAX_TEXT]
        raise ConfigError(f"verb is {verb!r}, expected one of {', '.join(word.VERBS)}")
    # An order about nodes names them there.
    _check_text("about", word.about, max(MAX_TEXT, len(compress(word.nodes))))
    _check_text("image", word.image)
    if word.unavailable is not None and word.unavailable < 1:
        raise ConfigError(f"unavailable is {word.unavailable}, expected a number from 1 on")


RULES: Mapping[type, OrderRule] = {
    Pause: OrderRule(lambda _, word: _check_scope(word.scope)),
    LimitChange: OrderRule(_check_limit, _after_limit),
    Departure: OrderRule(_check_departure),
}


def _check_text(name: str, text: str, longest: int = MAX_TEXT) -> None:
    """ConfigError if the text is too long, or has several lines or control characters."""
    if len(text) > longest:
        raise ConfigError(f"{name} has {len(text)} characters, expected {longest} at most")
    if not text.isprintable():
        raise ConfigError(f"{name} is {text!r}, expected characters that can be printed")


def _check(config: Config, ask: DirectAsk, now: float) -> None:
    _check_text("reason", ask.reason)
    scope = scope_named(config, ask.word.scope or "cluster", payers=True)
    if ask.word.scope not in ("", scope):
        raise ConfigError(f"scope is {ask.word.scope!r}, expected {scope!r}")
    RULES[type(ask.word)].check(config, ask.word)
    if ask.seconds is not None and not 0 < ask.seconds <= MAX_ORDER_S:
        raise ConfigError("an order must hold for more than 0 s and at most 366 days")
    if ask.starts is not None and not ask.starts <= now + MAX_ORDER_S:
        raise ConfigError("an order must begin within 366 days")


# how they are written down


def carry_out(config: Config, ask: Order, giver: str, now: float) -> tuple[str, ...]:
    """Record the order. Returns lines that say what it does.

    Raises ConfigError if the order does not fit the configuration, SlurmElasticError if the ledger
    cannot be written.
    """
    path = config.state / "ledger.db"
    if not is_there(path):
        raise SlurmElasticError(f"{path} does not exist: slurm-elasticd has never run")
    try:
        with contextlib.closing(Ledger(path)) as ledger:
            if isinstance(ask, EndAsk):
                return _end(config, ledger, ask, giver, now)
            return _direct(config, ledger, ask, giver, now)
    except sqlite3.Error as error:
        raise SlurmElasticError(f"the ledger: {trouble_of(error, path)}") from error


def _direct(
    config: Config, ledger: Ledger, ask: DirectAsk, giver: str, now: float
) -> tuple[str, ...]:
    try:
        ask = replace(ask, word=unpacked(ask.word))
    except HostlistError as error:
        raise ConfigError(f"the nodes of the order: {error.complaint}") from error
    _check(config, ask, now)
    word, starts = ask.word, now if ask.starts is None else max(ask.starts, now)
    until = None if ask.seconds is None else starts + ask.seconds
    reason = " ".join(ask.reason.split())
    with ledger.together():
        # Together, because slurm-elasticd writes the state of replacements into the order.
        replaced = replaced_orders(ledger.directives.all(), word, starts, now)
        for directive in replaced:
            if isinstance(word, Departure) and isinstance(directive.word, Departure):
                word = word.following(directive.word, starts)
        new = Directive(word=word, who=giver, since=now, starts=starts, until=until, reason=reason)
        for directive, new_end in replaced.items():
            if new_end is None:
                ledger.directives.end(directive.number)
            else:
                ledger.directives.shorten(directive.number, new_end)
        ledger.directives.give(new)
        _record(config, ledger, "directed", new, describe(new, now), now)
    after_end = RULES[type(word)].after_end(config, word)
    departed = "they have left, or " if word.ends_when_done else ""
    end = f"until: {departed}{word.ending_command}"
    after = end if until is None else f"from {clock(until)} on: {after_end}"
    return (
        *(
            f"order {'ended' if ends is None else f'ends at {clock(ends)}'}: {describe(d, now)}"
            for d, ends in replaced.items()
        ),
        describe(new, now),
        after,
    )


def _end(config: Config, ledger: Ledger, ask: EndAsk, giver: str, now: float) -> tuple[str, ...]:
    _check_text("reason", ask.reason)
    by = given_by(giver, None, " ".join(ask.reason.split()))
    lines = []
    # Together, because a refusal must mean that all orders stay: the person repeats the command.
    with ledger.together():
        for directive in ledger.directives.all():
            if directive.number in ask.numbers and ledger.directives.end(directive.number):
                line = f"order ended: {describe(directive, now)}"
                _record(config, ledger, "directive-ended", directive, f"{line}; ended{by}", now)
                lines.append(line)
    return tuple(lines)


def _record(
    config: Config, ledger: Ledger, kind: str, directive: Directive, reason: str, now: float
) -> None:
    subjects = subjects_of(config, directive)
    ledger.decisions.record(
        Decision(
            at=now,
            correlation=directive.correlation,
            kind=kind,
            subjects=subjects,
            cause=Quoted(text=reason),
        )
    )
