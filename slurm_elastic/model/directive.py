"""Directives of operators, which apply at run time in addition to the configuration: a pause, a
changed limit, machines that must leave. Pure.

Each kind of directive is a class with its scope, its text for people and its effect. The rules who
may give it, and when it is refused, are in ``watch.door.orders``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.units import money

MAINTENANCE = "slurm-elastic:maintenance:"
"""The begin of Slurm's reason of nodes that leave because of a directive."""
OPERATORS, LIMITS = "operators", "limits"
"""The correlations of decisions about directives. LIMITS contain money, which only some users may
see.
"""
_EACH = {"dollars_per_hour": "/h", "per_day": " a day", "per_month": " a month"}


class _Word(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """The defaults of all kinds of directives. Each kind also has a ``fact``: the sentence that is
    true while the directive is in force.
    """

    is_limit: ClassVar[bool] = False
    """Whether the directive changes a limit: it contains money, and ``limit SCOPE KEY reset`` ends
    it. ``resume`` ends the other directives.
    """
    scope: str
    """The scope of a cloud, of a pool, or of the cluster ("")."""

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes that the order applies to; empty if it applies to a whole cloud or pool."""
        return ()

    @property
    def replaced_key(self) -> tuple[str, ...]:
        """The key of the directive: a later directive with the same key replaces it."""
        return (self.scope,)

    @property
    def subject(self) -> str:
        """The object of the directive, for people."""
        return scope_in_words(self.scope)

    @property
    def blocks_starts(self) -> bool:
        """Whether the directive lets nothing new start in its scope."""
        return True

    @property
    def command_name(self) -> str:
        """The name of the command that gives this order."""
        return str(self.__struct_config__.tag)

    @property
    def ends_when_done(self) -> bool:
        """Whether the directive ends when it has been carried out, even if no end time is set."""
        return False

    @property
    def ending_command(self) -> str:
        """The command that ends this order."""
        return f"slurm-elastic resume {self.argument}".rstrip()

    @property
    def argument(self) -> str:
        """The object of the directive, as an argument of commands. The kind stays in front,
        because a cloud and a pool may share a name.
        """
        return self.scope or "cluster"


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
    def replaced_key(self) -> tuple[str, ...]:
        return self.scope, self.key

    @property
    def blocks_starts(self) -> bool:
        return False

    @property
    def ending_command(self) -> str:
        return f"slurm-elastic limit {self.argument} {self.key} reset"

    @property
    def fact(self) -> str:
        return f"{self.subject}: {self.key} is {bound(self.key, self.value)}"


class ReplacementMachine(Struct, frozen=True, kw_only=True):
    """A machine that slurm-elasticd has started in the other cloud, on ``node``, in place of the
    machine of ``instead_of``. ``is_over``: it is no longer kept, because a job has used it or its
    time has passed.
    """

    node: str
    instead_of: str = ""
    is_over: bool = False


class Replacements(Struct, frozen=True, kw_only=True):
    """The machines of a migration that start before its jobs. ``wanted``: how many. Each is kept
    without a job until ``kept_until`` (Unix time).
    """

    wanted: int
    kept_until: float
    machines: tuple[ReplacementMachine, ...] = ()


class Departure(_Word, frozen=True, kw_only=True, tag="departure"):
    """The machines of ``nodes`` leave. ``verb``: how (see VERBS). ``about``: the operator's name
    for the nodes. After a drain or a migration nothing new starts on them. ``scope``: the cloud or
    pool if all its machines leave, else "".

    ``aggressive``: save and requeue the jobs instead of waiting for their ends. ``unavailable``: so
    many machines at most leave at a time (None: all). ``to``: the cloud to whose partition waiting
    jobs are moved. ``image``: only machines that were started from this image leave.
    ``start_replacements``: as many machines of ``to`` start at once. ``replacements``: the state of
    these starts, written by slurm-elasticd; None before it has begun them.
    """

    VERBS: ClassVar = {"drain": "drained", "replace": "being replaced", "migrate": "emptied"}
    """The ways to leave, each with its participle for sentences."""
    verb: str
    about: str
    nodes: tuple[str, ...]
    scope: str = ""
    aggressive: bool = False
    unavailable: int | None = None
    to: str = ""
    image: str = ""
    start_replacements: bool = False
    replacements: Replacements | None = None

    @property
    def node_names(self) -> tuple[str, ...]:
        return () if self.scope else self.nodes

    @property
    def replaced_key(self) -> tuple[str, ...]:
        return self.verb, self.about, self.image

    @property
    def subject(self) -> str:
        return self.about

    @property
    def argument(self) -> str:
        return super().argument if self.scope else self.about

    @property
    def command_name(self) -> str:
        return self.verb

    @property
    def ends_when_done(self) -> bool:
        return not self.blocks_starts

    @property
    def blocks_starts(self) -> bool:
        return self.verb != "replace"

    @property
    def fact(self) -> str:
        is_plural = len(self.nodes) > 1
        subject = self.about if self.scope else f"{'nodes' if is_plural else 'node'} {self.about}"
        be = "are" if is_plural and not self.scope else "is"
        return f"{subject} {be} {self.manner}"

    @property
    def manner(self) -> str:
        """How the machines leave, for people."""
        ahead = ", with replacements" if self.start_replacements else ""
        return f"{self.VERBS[self.verb]}{f' to {self.to}' if self.to else ''}{ahead}"

    def following(self, earlier: Departure, starts: float) -> Departure:
        """Return this order, from ``starts`` on, with the replacements of the ``earlier`` order. It
        replaces that order, and would otherwise start as many machines once more.
        """
        begun = earlier.replacements
        if begun is None or not self.start_replacements:
            return self
        if earlier.to != self.to or starts >= begun.kept_until:
            return self
        return replace(self, replacements=begun)

    def kept_nodes(self, now: float) -> tuple[str, ...]:
        """The nodes whose replacements are kept without a job at ``now``."""
        started = self.replacements
        if started is None or now >= started.kept_until:
            return ()
        return tuple(machine.node for machine in started.machines if not machine.is_over)


Word = Pause | LimitChange | Departure


class Directive(Struct, frozen=True, kw_only=True):
    """An operator's directive: ``who`` gave ``word`` at ``since``. It is in force from ``starts``
    until ``until``; None: until a person ends it or it is carried out (``ends_by_itself``). Times
    are Unix time. ``number``: its number in the ledger, 0 before it is written.
    """

    word: Word
    who: str
    since: float
    starts: float
    until: float | None = None
    reason: str = ""
    number: int = 0

    def holds(self, now: float) -> bool:
        """Whether the directive is in force at ``now`` (Unix time)."""
        return self.has_begun(now) and (self.until is None or now < self.until)

    def has_begun(self, now: float) -> bool:
        """Whether the directive is in force at ``now`` or was before. One without a later begin is
        in force at once, also if the clock was ahead when it was given, or was set back since.
        """
        return self.starts <= max(self.since, now)

    @property
    def ends_by_itself(self) -> bool:
        """Whether the directive ends without an action of a person."""
        return self.until is not None or self.word.ends_when_done

    @property
    def correlation(self) -> str:
        """The correlation of decisions about the directive."""
        return LIMITS if self.word.is_limit else OPERATORS


def bound(key: str, value: float | None) -> str:
    """The value of a limit for people: ``$5.00/h``, ``4``."""
    if value is None:
        return "no limit"
    return f"{money(value)}{_EACH[key]}" if key in _EACH else f"{value:g}"


def stop_reason(directive: Directive, since: str = "") -> str:
    """Why nothing starts, in one line. It stays the same while the directive is in force."""
    return f"{directive.word.fact}{given(directive, since)}"


def given(directive: Directive, since: str = "") -> str:
    """The end of the line of ``stop_reason``: its author, end and reason."""
    return given_by(directive.who, directive.until, directive.reason, since)


def given_by(who: str, until: float | None, reason: str, since: str = "") -> str:
    """The text of ``given``, from single values. ``until``: Unix time.

    It begins with a blank, because it continues a sentence: `` by root until ...: new image``.
    """
    limit = "" if until is None else f" until {clock(until)}"
    reason_text = f": {reason}" if reason else ""
    return f" by {who}{since}{limit}{reason_text}"


def describe(directive: Directive, now: float) -> str:
    """A directive in one line: its effect, its begin if it is not in force yet, its end, its
    author and the reason.
    """
    start = clock(directive.starts)
    if not directive.has_begun(now):
        return f"from {start} on: {stop_reason(directive)}"
    return stop_reason(directive, f" since {start}" if directive.word.is_limit else "")


def clock(time: float) -> str:
    """A point in time for texts about directives: in UTC, like the periods of budgets."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC"


def stopped_pools(
    directives: Iterable[Directive], cloud_of: Mapping[str, str], now: float
) -> dict[str, Directive]:
    """By pool: the order because of which no machine may start in it. ``cloud_of``: each pool's
    cloud. An order for the pool has precedence over one for its cloud or the cluster.
    """
    closing = (
        d for d in directives if d.holds(now) and d.word.blocks_starts and not d.word.node_names
    )
    closed = {d.word.scope: d for d in closing}
    order_by_pool: dict[str, Directive] = {}
    for pool, cloud in cloud_of.items() if closed else ():
        for scope in (scope_of_pool(pool), scope_of_cloud(cloud), ""):
            if scope in closed:
                order_by_pool[pool] = closed[scope]
                break
    return order_by_pool


def stopped_nodes(directives: Iterable[Directive], now: float) -> dict[str, Directive]:
    """By node: the departure that closes the node, so that no new machine may start for it."""
    closing = ((d, d.word) for d in directives if d.holds(now) and d.word.blocks_starts)
    leaving = ((d, word) for d, word in closing if isinstance(word, Departure))
    return {node: d for d, word in leaving for node in word.nodes}


def replaced_orders(
    directives: Iterable[Directive], word: Word, starts: float, now: float
) -> dict[Directive, float | None]:
    """The orders that an order ``word`` from ``starts`` on replaces, with the time at which each
    one ends (Unix time; None: at once). An order in force lasts until the new one begins. An order
    whose replacements the new order takes over ends at once: later replacements would be unknown.
    """
    replaced: dict[Directive, float | None] = {}
    for earlier in directives:
        is_same = (type(earlier.word), earlier.word.replaced_key) == (type(word), word.replaced_key)
        if not is_same or (earlier.until is not None and now < earlier.until <= starts):
            continue
        shared = (
            isinstance(word, Departure)
            and isinstance(earlier.word, Departure)
            and word.following(earlier.word, starts) is not word
        )
        lasts = earlier.starts < starts and now < starts and not shared
        replaced[earlier] = starts if lasts else None
    return replaced


def kept_replacements(directives: Iterable[Directive], now: float) -> dict[str, Directive]:
    """By node: the migration for which its machine is kept although no job uses it yet."""
    held = ((d, d.word) for d in directives if d.holds(now))
    migrations = ((d, word) for d, word in held if isinstance(word, Departure))
    return {node: d for d, word in migrations for node in word.kept_nodes(now)}


def limit_changes(directives: Iterable[Directive], now: float) -> tuple[LimitChange, ...]:
    """The changed limits that are in force at ``now``."""
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
