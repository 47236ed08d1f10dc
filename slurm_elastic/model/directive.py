"""Directives: an operator's word that holds until it is over, at run time and beside the
configuration: a pause, a changed limit, machines that are to leave.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

MAINTENANCE = "slurm-elastic:maintenance:"
"""The beginning of the reason of nodes that leave by a directive."""

LIMITS = "limits"
"""The correlation of decisions on changed limits: they tell of money, of which not all are told."""

VERBS = ("drain", "replace", "migrate")
"""The ways for machines to leave."""


class Pause(Struct, frozen=True, kw_only=True, tag_field="kind", tag="pause"):
    """No new machines in ``scope`` (a cloud's, a pool's, or the cluster's). Running jobs stay."""

    scope: str


class LimitChange(Struct, frozen=True, kw_only=True, tag_field="kind", tag="limit"):
    """The limit ``key`` of ``scope`` (also ``account:NAME``, ``user:NAME``) is ``value``, whatever
    the file says: machines, or dollars (of an hour, a day, a month).
    """

    scope: str
    key: str
    value: float


class Departure(Struct, frozen=True, kw_only=True, tag_field="kind", tag="departure"):
    """Machines leave: those of ``nodes``, as ``verb`` (drain, replace, migrate) says. ``about`` is
    the operator's word for them. After a drain or a migration nothing new starts there; ``scope``
    is a cloud's or pool's where all of it leaves, else empty.

    ``aggressive``: jobs are saved and requeued, and not waited for. At most ``unavailable`` leave
    at a time (None: all). ``to``: the cloud whose partition the jobs are moved to. ``image``: only
    machines that started from it.
    """

    verb: str
    about: str
    nodes: tuple[str, ...]
    scope: str = ""
    aggressive: bool = False
    unavailable: int | None = None
    to: str = ""
    image: str = ""

    @property
    def closes(self) -> bool:
        """Whether nothing new may start there."""
        return self.verb != "replace"


Word = Pause | LimitChange | Departure


class Directive(Struct, frozen=True, kw_only=True):
    """A word, and who gave it ``since`` when; ``number`` is the ledger's (0: not written yet). It
    holds from ``starts`` until ``until`` (None: until a person ends it). Unix times.
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


def scope_of_cloud(name: str) -> str:
    """The scope of a cloud, as limits and their usage name it."""
    return f"cloud:{name}"


def scope_of_pool(name: str) -> str:
    """The scope of a pool."""
    return f"pool:{name}"


def scope_in_words(scope: str) -> str:
    """A scope for people."""
    return scope.replace(":", " ") if scope else "the cluster"


def limit_changes(directives: Iterable[Directive], now: float) -> tuple[LimitChange, ...]:
    """The limits that are other than the configuration's now."""
    held = (d.word for d in directives if d.holds(now))
    return tuple(word for word in held if isinstance(word, LimitChange))
