"""Reports each cause once: by the row that sees the fault itself, not by the rows that suffer from
it.

The other rows leave the cause out, or refer to the first row. Pure functions.

A cause is the key of the thing at fault: a cloud that answers with errors (``cloud:aws``), a
pool whose machines fail (``pool:general``), an operator's order (``order:3``), the name that the
ledger's health or its service has, or a constant of this module. A row with the cause "" is always
shown.
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
_POOL_SCOPE_PARTS = 4
"""Parts that follow the cloud in the scope of a cool-down of one pool (cloud/*/*/*/pool)."""


class Caused(Protocol):
    """A finding, a notice or a row; several of them may have the same cause."""

    @property
    def cause(self) -> str: ...


_C = TypeVar("_C", bound=Caused)


def once_per_cause(rows: Iterable[_C], reported: set[str]) -> Iterator[_C]:
    """Yield the rows whose cause is not yet in ``reported``, and add their causes to it."""
    for row in rows:
        if row.cause not in reported:
            yield row
            reported |= {row.cause} - {""}


def cause_of_health(health: Health, clouds: Collection[str]) -> str:
    """Return the key of the thing at fault if the last answer of that name was an error."""
    code = health.code or ""
    if code == SLURM or code.startswith(scope_of_cloud("")):
        return code
    return scope_of_cloud(health.name) if health.name in clouds else health.name


def service_errors(
    health: Sequence[Health], clouds: Collection[str], reported: set[str]
) -> Iterator[Health]:
    """Yield the errors of services and sources other than clouds, one for each cause.

    Errors are left out if ``reported`` has their cause, or a cloud's error does.
    """
    service_health = sorted(
        (h for h in health if h.error and h.name not in clouds), key=_is_other_than_slurm
    )
    seen_causes = {
        cause_of_health(h, clouds) for h in health if h.error and h.name in clouds
    } | reported
    for health_row in service_health:
        cause = cause_of_health(health_row, clouds)
        if cause not in seen_causes:
            seen_causes.add(cause)
            yield health_row


def _is_other_than_slurm(health: Health) -> bool:
    """Sort Slurm's own answer first: other sources fail if Slurm does not answer."""
    return health.name != SLURM


def is_scope(name: str) -> bool:
    """Return whether the key names a cloud or a pool."""
    return name.startswith((scope_of_cloud(""), scope_of_pool("")))


def cause_of_order(number: int) -> str:
    """Return the key of an operator's order."""
    return f"order:{number}"


def cause_of_cool_down(cool_down: Exclusion) -> str:
    """Return the key of the thing at fault in a cool-down.

    Several offers of a cloud that gave the same answer have the same key; so have all offers of a
    pool or cloud not tried at all. A denied offer has none ("").
    """
    cloud, *scope_parts = cool_down.scope.split("/")
    if scope_parts[:3] != ["*", "*", "*"]:
        return "" if cool_down.code == DENIED else _cause_of_answer(cool_down.code, cool_down.cause)
    return (
        _cause_of_pool(scope_parts[-1], cool_down.cause)
        if len(scope_parts) == _POOL_SCOPE_PARTS
        else scope_of_cloud(cloud)
    )


def cause_of_hold(cause: AnyCause) -> str:
    """Return the key of the thing at fault in a hold, from its cause; "" if no row reports it."""
    match cause:
        case StoppedByOrder():
            return cause_of_order(cause.number)
        case CloudSilent() | CloudUnlisted():
            return scope_of_cloud(cause.cloud)
        case PoolPaused():
            return scope_of_pool(cause.pool)
        case CoolsDown():
            return _cause_of_answer(cause.code, cause.cause)
        case ScopesCoolDown():
            return _common_name(map(_cause_of_scope, cause.scopes))
        case NoOfferServes():
            return _common_name(
                cause_of_hold(group.cause) for group in (*cause.groups, *cause.bounded)
            )
        case RequestsRefused():
            return _common_name(map(cause_of_hold, cause.causes))
        case _:
            return ""


def _cause_of_scope(scope: ScopeCoolsDown) -> str:
    return (
        _cause_of_pool(scope.pool, scope.cause)
        if scope.pool
        else _cause_of_answer(scope.code, scope.cause)
    )


def _common_name(names: Iterable[str]) -> str:
    """Return the name that all have; "" if they differ."""
    first_name, *other_names = dict.fromkeys(names)
    return "" if other_names else first_name


def _cause_of_answer(code: str, cause: AnyCause) -> str:
    """Return the key of a cloud's answer, which several of its offers may have given."""
    return f"{code} {encoded(cause)}"


def _cause_of_pool(pool: str, cause: AnyCause) -> str:
    """Return the key of a pool whose machines fail.

    If the reason of the failed boots is known, it is the key: the pool's breaker does not report
    it.
    """
    is_known = isinstance(cause, MachinesFailed) and cause.detail is not None
    return encoded(cause) if is_known else scope_of_pool(pool)
