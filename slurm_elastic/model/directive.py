"""Operators' words that hold until they are over, at run time and beside the configuration: a
pause, a changed limit, machines that are to leave. Pure.

A word is a class here, and says itself what it is about, how it is told and what it closes; who may
give it, and what of it is refused, is in ``watch.door.orders``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import ClassVar

from msgspec import Struct

from slurm_elastic.base.units import money

MAINTENANCE = "slurm-elastic:maintenance:"
"""The beginning of the reason of nodes that leave by a directive."""
OPERATORS, LIMITS = "operators", "limits"
"""The correlations of decisions on directives: LIMITS tell of money, of which not all are told."""
_EACH = {"dollars_per_hour": "/h", "per_day": " a day", "per_month": " a month"}


class _Word(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What is the same of all words, but for those that say otherwise. Each tells besides, as its
    ``fact``, what is so while it holds.
    """

    is_limit: ClassVar[bool] = False
    """It tells of money, and is ended by ``limit SCOPE KEY reset``; the others by ``resume``."""
    scope: str
    """A cloud's, a pool's, or the cluster's ("")."""

    @property
    def single(self) -> tuple[str, ...]:
        """The nodes that it is about, where no cloud or pool is meant as a whole."""
        return ()

    @property
    def place(self) -> tuple[str, ...]:
        """What it is about: a later one of that takes its place."""
        return (self.scope,)

    @property
    def subject(self) -> str:
        """The same for people."""
        return scope_in_words(self.scope)

    @property
    def closes(self) -> bool:
        """Whether nothing new may start there."""
        return True

    @property
    def given_by(self) -> str:
        """The name of the command that gives it."""
        return str(self.__struct_config__.tag)

    @property
    def gets_done(self) -> bool:
        """Whether it is over once all of it is done, also without a time."""
        return False

    @property
    def ended_by(self) -> str:
        """The command that ends it."""
        return f"slurm-elastic resume {self.typed}".rstrip()

    @property
    def typed(self) -> str:
        """What it is about, as commands take it."""
        return self.scope.removeprefix("cloud:").removeprefix("pool:") or "cluster"


class Pause(_Word, frozen=True, kw_only=True, tag="pause"):
    """No new machines in ``scope``. Running jobs stay."""

    @property
    def fact(self) -> str:
        return f"{self.subject} is paused"


class LimitChange(_Word, frozen=True, kw_only=True, tag="limit"):
    """The limit ``key`` of ``scope`` (also ``account:NAME``, ``user:NAME``) is ``value``, whatever
    the file says: machines, or dollars (of an hour, a day, a month).
    """

    is_limit: ClassVar[bool] = True
    key: str
    value: float

    @property
    def place(self) -> tuple[str, ...]:
        return self.scope, self.key

    @property
    def closes(self) -> bool:
        return False

    @property
    def ended_by(self) -> str:
        return f"slurm-elastic limit {self.typed} {self.key} reset"

    @property
    def fact(self) -> str:
        return f"{self.subject}: {self.key} is {bound(self.key, self.value)}"


class Departure(_Word, frozen=True, kw_only=True, tag="departure"):
    """Machines leave: those of ``nodes``, as ``verb`` says. ``about`` is the operator's word for
    them. After a drain or a migration nothing new starts there; ``scope`` is a cloud's or pool's
    where all of it leaves, else empty.

    ``aggressive``: jobs are saved and requeued, and not waited for. At most ``unavailable`` leave
    at a time (None: all). ``to``: the cloud whose partition the jobs are moved to. ``image``: only
    machines that started from it.
    """

    VERBS: ClassVar = {"drain": "drained", "replace": "being replaced", "migrate": "emptied"}
    """The ways to leave, and what is said of machines that do."""
    verb: str
    about: str
    nodes: tuple[str, ...]
    scope: str = ""
    aggressive: bool = False
    unavailable: int | None = None
    to: str = ""
    image: str = ""

    @property
    def single(self) -> tuple[str, ...]:
        return () if self.scope else self.nodes

    @property
    def place(self) -> tuple[str, ...]:
        return self.verb, self.about, self.image

    @property
    def subject(self) -> str:
        return self.about

    @property
    def typed(self) -> str:
        return super().typed if self.scope else self.about

    @property
    def given_by(self) -> str:
        return self.verb

    @property
    def gets_done(self) -> bool:
        return not self.closes

    @property
    def closes(self) -> bool:
        return self.verb != "replace"

    @property
    def fact(self) -> str:
        many = len(self.nodes) > 1
        about = self.about if self.scope else f"{'nodes' if many else 'node'} {self.about}"
        be = "are" if many and not self.scope else "is"
        return f"{about} {be} {self.manner}"

    @property
    def manner(self) -> str:
        """How they leave."""
        return f"{self.VERBS[self.verb]}{f' to {self.to}' if self.to else ''}"


Word = Pause | LimitChange | Departure


class Directive(Struct, frozen=True, kw_only=True):
    """A word, and who gave it ``since`` when; ``number`` is the ledger's (0: not written yet). It
    holds from ``starts`` until ``until``; None: until a person ends it, or it is done
    (``ends_by_itself``). Unix times.
    """

    word: Word
    who: str
    since: float
    starts: float
    until: float | None = None
    reason: str = ""
    number: int = 0

    def holds(self, now: float) -> bool:
        """Whether it is in force."""
        return self.starts <= now and (self.until is None or now < self.until)

    @property
    def ends_by_itself(self) -> bool:
        """Whether it ends although no person ends it."""
        return self.until is not None or self.word.gets_done

    @property
    def correlation(self) -> str:
        """That of decisions on it."""
        return LIMITS if self.word.is_limit else OPERATORS


def bound(key: str, value: float | None) -> str:
    """The value of a limit for people: ``$5.00/h``, ``4``."""
    if value is None:
        return "no limit"
    return f"{money(value)}{_EACH[key]}" if key in _EACH else f"{value:g}"


def stop_reason(directive: Directive, since: str = "") -> str:
    """Why nothing starts, in one line that stays the same as long as the directive holds."""
    return f"{directive.word.fact}{given(directive, since)}"


def given(directive: Directive, since: str = "") -> str:
    """By whom, until when and why: the end of such a line."""
    return given_by(directive.who, directive.until, directive.reason, since)


def given_by(who: str, until: float | None, reason: str, since: str = "") -> str:
    """The same of these."""
    limit = "" if until is None else f" until {clock(until)}"
    why = f": {reason}" if reason else ""
    return f" by {who}{since}{limit}{why}"


def told(directive: Directive, now: float) -> str:
    """A directive in one line: what holds now, or will, for how long, by whom and why."""
    start = clock(directive.starts)
    if directive.starts > now:
        return f"from {start} on: {stop_reason(directive)}"
    return stop_reason(directive, f" since {start}" if directive.word.is_limit else "")


def clock(at: float) -> str:
    """A point in time as directives are told: in UTC, as budgets are."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def stopped_pools(
    directives: Iterable[Directive], cloud_of: Mapping[str, str], now: float
) -> dict[str, Directive]:
    """By pool, the order that lets no machine start there. ``cloud_of``: each pool's cloud."""
    closing = (d for d in directives if d.holds(now) and d.word.closes and not d.word.single)
    closed = {d.word.scope: d for d in closing}
    found: dict[str, Directive] = {}
    for pool, cloud in cloud_of.items() if closed else ():
        for scope in (scope_of_pool(pool), scope_of_cloud(cloud), ""):
            if scope in closed:
                found[pool] = closed[scope]
                break
    return found


def stopped_nodes(directives: Iterable[Directive], now: float) -> dict[str, Directive]:
    """By node, the order that keeps it from Slurm: where machines leave, and none are to come."""
    closing = ((d, d.word) for d in directives if d.holds(now) and d.word.closes)
    leaving = ((d, word) for d, word in closing if isinstance(word, Departure))
    return {node: d for d, word in leaving for node in word.nodes}


def limit_changes(directives: Iterable[Directive], now: float) -> tuple[LimitChange, ...]:
    """The limits that are other than the configuration's now."""
    held = (d.word for d in directives if d.holds(now))
    return tuple(word for word in held if isinstance(word, LimitChange))


def scope_of_cloud(name: str) -> str:
    """The scope of a cloud, as limits and their usage name it."""
    return f"cloud:{name}"


def scope_of_pool(name: str) -> str:
    """The scope of a pool."""
    return f"pool:{name}"


def scope_in_words(scope: str) -> str:
    """A scope for people."""
    return scope.replace(":", " ") if scope else "the cluster"
