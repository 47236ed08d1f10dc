"""One cause is told once: by whom it is seen itself, before those who remember it or suffer from
it; these leave it out, or refer to it. Pure.

A cause is the name of what is at fault: a cloud that does not answer as it should (``cloud:aws``),
a pool whose machines fail (``pool:general``), an operator's order (``order:3``), what the ledger's
health or its service is called, or one of those below. "" is told each time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from slurm_elastic.model.causes import AnyCause, encoded
from slurm_elastic.model.causes.composed import (
    CoolsDown,
    NoOfferServes,
    PoolPaused,
    RequestsRefused,
    ScopeCoolsDown,
    ScopesCoolDown,
)
from slurm_elastic.model.causes.pool_failures import MachinesFailed
from slurm_elastic.model.causes.refusals import CloudSilent, CloudUnlisted
from slurm_elastic.model.causes.stops import StoppedByOrder
from slurm_elastic.model.directive import scope_of_cloud, scope_of_pool
from slurm_elastic.model.exclusion import Exclusion
from slurm_elastic.model.memory import Health
from slurm_elastic.policies.launch.exclusions import DENIED

SLURM, LEDGER, DISK = "slurm", "ledger", "disk"
INSTALL = "install"
"""Our part of slurm.conf is not in place."""
UNHELPED = "unhelped jobs"
_PARTS = 4
"""Parts of the scope of a cool-down, but for one of a single pool."""


class Caused(Protocol):
    """A finding, a sentence or a row that may have a cause in common with another."""

    @property
    def cause(self) -> str: ...


_C = TypeVar("_C", bound=Caused)


def told_once(found: Iterable[_C], told: set[str]) -> Iterator[_C]:
    """Those of whose cause nothing is ``told``, which the causes of these are added to."""
    for one in found:
        if one.cause not in told:
            yield one
            told |= {one.cause} - {""}


def of_health(health: Health, clouds: Collection[str]) -> str:
    """What is at fault where the last answer of that name was an error."""
    code = health.code or ""
    if code == SLURM or code.startswith(scope_of_cloud("")):
        return code
    return scope_of_cloud(health.name) if health.name in clouds else health.name


def faults(health: Sequence[Health], clouds: Collection[str], told: set[str]) -> Iterator[Health]:
    """The errors of services and sources other than clouds, one of each cause that nothing else
    has ``told``.
    """
    others = sorted((h for h in health if h.error and h.name not in clouds), key=_is_of_source)
    seen = {of_health(h, clouds) for h in health if h.error and h.name in clouds} | told
    for one in others:
        cause = of_health(one, clouds)
        if cause not in seen:
            seen.add(cause)
            yield one


def _is_of_source(health: Health) -> bool:
    """Slurm's own answer comes first: other sources fail because Slurm does not answer."""
    return health.name != SLURM


def is_scope(name: str) -> bool:
    """Whether a cloud or a pool is at fault."""
    return name.startswith((scope_of_cloud(""), scope_of_pool("")))


def of_order(number: int) -> str:
    """An operator's order."""
    return f"order:{number}"


def of_cool_down(one: Exclusion) -> str:
    """Why all offers of a pool or a cloud are not asked, or some for what they answered."""
    cloud, *rest = one.scope.split("/")
    if rest[:3] != ["*", "*", "*"]:
        return "" if one.code == DENIED else _of_answer(one.code, one.cause)
    return _of_pool(rest[-1], one.cause) if len(rest) == _PARTS else scope_of_cloud(cloud)


def of(cause: AnyCause) -> str:
    """What is at fault, by the cause of a hold; "" if nothing else can tell of it."""
    match cause:
        case StoppedByOrder():
            return of_order(cause.number)
        case CloudSilent() | CloudUnlisted():
            return scope_of_cloud(cause.cloud)
        case PoolPaused():
            return scope_of_pool(cause.pool)
        case CoolsDown():
            return _of_answer(cause.code, cause.cause)
        case ScopesCoolDown():
            return _common(map(_of_scope, cause.scopes))
        case NoOfferServes():
            return _common(of(group.cause) for group in (*cause.groups, *cause.bounded))
        case RequestsRefused():
            return _common(map(of, cause.causes))
        case _:
            return ""


def _of_scope(one: ScopeCoolsDown) -> str:
    return _of_pool(one.pool, one.cause) if one.pool else _of_answer(one.code, one.cause)


def _common(names: Iterable[str]) -> str:
    """The name that all have; "" if they differ."""
    first, *others = dict.fromkeys(names)
    return "" if others else first


def _of_answer(code: str, cause: AnyCause) -> str:
    """The answer of a cloud, which several of its offers may have given."""
    return f"{code} {encoded(cause)}"


def _of_pool(pool: str, cause: AnyCause) -> str:
    """Its machines fail; why some did not register, where that is known, its breaker does not."""
    is_known = isinstance(cause, MachinesFailed) and cause.known is not None
    return encoded(cause) if is_known else scope_of_pool(pool)
