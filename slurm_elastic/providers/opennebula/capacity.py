"""How many more machines an account can have: by its quota, the hosts, and who waits already.

The scheduler never refuses: what it cannot place stays PENDING. So what can be known is asked
before. Hosts are shown to few accounts, a group's quota is only met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from slurm_elastic.providers.opennebula.convert import PENDING, undated

ALL = -2
"""The filter for what an account may see."""
QUOTA_WORDS = "the account's"
"""What begins the words of a bound that is a quota."""
_HOST_UP = frozenset({1, 2})  # MONITORING_MONITORED MONITORED
_UNLIMITED, _BY_DEFAULT = -2.0, -1.0

Bound = tuple[int, str]
"""At most so many, and why."""


def bounds(
    call: Callable[..., Any], template: Mapping[str, Any], in_line: Collection[int] = ()
) -> list[Bound]:
    """What bounds more machines of a template; ``call`` asks oned. Machines of ours ``in_line``
    wait for the scheduler, whatever it says of them (``scheduling``).
    """
    wanted = need(template)
    if wanted is None:
        return []
    user = call("user.info", -1)
    quota = quota_room(user, wanted)
    found = [quota] if quota else []
    # Before the hosts: a machine that is placed in between counts twice, not never.
    waiting = call("vmpool.info", ALL, -1, -1, PENDING).VM
    room = host_room(call("hostpool.info").HOST, wanted)
    if room is not None:
        # One that the scheduler has tried in vain takes no room from those behind it.
        queue = sum(not _message(r) or int(r.ID) in in_line for r in waiting)
        words = f"the hosts have room for {room} and {queue} machines wait for a place"
        found.append((max(room - queue, 0), words))
    tried = [r for r in waiting if int(r.ID) not in in_line]
    why = stuck(tried, int(user.ID), wanted)
    if why:
        found.append((0, f"a machine of no more needs waits for a place: {why}"))
    return found


def _message(record: Any) -> str:  # noqa: ANN401 - a pyone object
    return str((record.USER_TEMPLATE or {}).get("SCHED_MESSAGE") or "")


def stuck(waiting: Iterable[Any], uid: int, wanted: Need) -> str:
    """Why a machine of the account's own that needs no more than ``wanted`` finds no place; empty
    where there is none. Others' may have requirements of their own.
    """
    for record in waiting:
        why, small = _message(record), need(record.TEMPLATE or {})
        if why and int(record.UID) == uid and small is not None and _within(small, wanted):
            return undated(why)
    return ""


class Need(Struct, frozen=True):
    """What the scheduler counts for a machine: physical cpus and MiB."""

    cpu: float
    memory: float


def need(template: Mapping[str, Any]) -> Need | None:
    """Of a VM template; None where it does not say so in plain numbers."""
    try:
        found = Need(float(template["CPU"]), float(template["MEMORY"]))
    except (KeyError, TypeError, ValueError):
        return None
    return found if found.cpu > 0 and found.memory > 0 else None


def _within(small: Need, wanted: Need) -> bool:
    return small.cpu <= wanted.cpu and small.memory <= wanted.memory


def host_room(hosts: Iterable[Any], wanted: Need) -> int | None:
    """For how many machines the hosts have room; None where the account sees no hosts."""
    shares = _shares(hosts)
    if not shares:
        return None
    return sum(
        _fit(
            (int(s.MAX_CPU) - int(s.CPU_USAGE)) / 100 / wanted.cpu,
            (int(s.MAX_MEM) - int(s.MEM_USAGE)) / 1024 / wanted.memory,
        )
        for s in shares
    )


def whole_hosts(hosts: Iterable[Any], wanted: Need) -> int | None:
    """As ``host_room``, were nothing else there."""
    shares = _shares(hosts)
    if not shares:
        return None
    return sum(
        _fit(int(s.MAX_CPU) / 100 / wanted.cpu, int(s.MAX_MEM) / 1024 / wanted.memory)
        for s in shares
    )


def _shares(hosts: Iterable[Any]) -> Sequence[Any]:
    return [host.HOST_SHARE for host in hosts if int(host.STATE) in _HOST_UP]


def quota_room(user: Any, wanted: Need) -> tuple[int, str] | None:  # noqa: ANN401
    """For how many machines the account's own quota has room, and which one that is.

    The group's quota can only be met: not every account may read it.
    """
    per_machine = {"VMS": 1.0, "CPU": wanted.cpu, "MEMORY": wanted.memory}
    bounds = [
        (_fit((q.limit - q.used) / per_machine[q.key]), _quota_words(q.key, q.limit, q.used))
        for q in quotas(user)
    ]
    return min(bounds, default=None)


class Quota(Struct, frozen=True):
    """A bound of the account's own: VMS, CPU or MEMORY (MiB)."""

    key: str
    limit: float
    used: float


def quotas(user: Any) -> Sequence[Quota]:  # noqa: ANN401 - a pyone object
    """Those of the account's quotas that bound something; the defaults' where it has none."""
    own = _quotas(user.VM_QUOTA)
    defaults = _quotas(getattr(user, "DEFAULT_USER_QUOTAS", None) and _default(user))
    found = []
    for key in ("VMS", "CPU", "MEMORY"):
        limit = _number(own.get(key), _BY_DEFAULT)
        if limit == _BY_DEFAULT:
            limit = _number(defaults.get(key), _UNLIMITED)
        if limit >= 0:
            found.append(Quota(key, limit, _number(own.get(f"{key}_USED"), 0.0)))
    return found


def _default(user: Any) -> Any:  # noqa: ANN401
    return user.DEFAULT_USER_QUOTAS.VM_QUOTA


def _quotas(quota: Any) -> Mapping[str, Any]:  # noqa: ANN401
    """Pyone 6.10 has one object in VM, 7.x a list, of which those of single clusters are not
    looked at; neither has any where there is no quota.
    """
    found = getattr(quota, "VM", None)
    several = found if isinstance(found, list) else [found]
    whole = [q for q in several if q is not None and not getattr(q, "CLUSTER_IDS", None)]
    return vars(whole[0]) if whole else {}


def _quota_words(key: str, limit: float, used: float) -> str:
    return f"{QUOTA_WORDS} {key} quota is {limit:g} and {used:g} are used"


def _fit(*shares: float) -> int:
    # A millionth of slack: ten machines of 0.1 cpu fit a quota of 1.
    return max(math.floor(min(shares) + 1e-6), 0)


def _number(value: object, otherwise: float) -> float:
    try:
        return float(str(value)) if value is not None else otherwise
    except ValueError:
        return otherwise
