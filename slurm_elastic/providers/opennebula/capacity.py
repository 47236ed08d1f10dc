"""How many more machines an account can have: by its quota, the hosts, and who waits already.

The scheduler never refuses: what it cannot place stays PENDING. So what can be known is asked
before. Hosts are shown to few accounts; a group that may not be read has quotas that are only met.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.providers.opennebula import requests
from slurm_elastic.providers.opennebula.convert import PENDING, undated

log = logging.getLogger(__name__)

ALL = -2
"""The filter for what an account may see."""
ACCOUNT, GROUP = "the account's", "the group's"
"""Whose a quota is, and what begins the words of a bound that is one."""
_HOST_UP = frozenset({1, 2})  # MONITORING_MONITORED MONITORED
_UNLIMITED, _BY_DEFAULT = -2.0, -1.0
_OF_MACHINES = ("VMS", "CPU", "MEMORY", "RUNNING_VMS", "RUNNING_CPU", "RUNNING_MEMORY",
                "SYSTEM_DISK_SIZE")  # fmt: skip

Bound = tuple[int, str]
"""At most so many, and why."""


def bounds(
    call: Callable[..., Any],
    template: Mapping[str, Any],
    group: Any = None,  # noqa: ANN401 - a pyone object
    in_line: Collection[int] = (),
) -> list[Bound]:
    """The bounds on more machines of a template; ``call`` asks oned. ``group`` gives the account's
    group, None where it may not be read. Machines of ours ``in_line`` wait for the scheduler,
    whatever it says of them (``scheduling``).
    """
    wanted = need(template)
    if wanted is None:
        return []
    user = call("user.info", -1)
    found = quota_bounds([*quotas(user), *group_quotas(group)], parts(call, template, wanted))
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
        if not why or int(record.UID) != uid or small is None:
            continue
        if small.cpu <= wanted.cpu and small.memory <= wanted.memory:
            return undated(why)
    return ""


class Need(Struct, frozen=True):
    """The sizes that the scheduler counts for a machine: physical cpus and MiB."""

    cpu: float
    memory: float


class Quota(Struct, frozen=True):
    """A bound of an account or its group: ``key`` as oned calls it (VMS, MEMORY in MiB, LEASES
    ...), ``about`` the number of the network (LEASES) or image (RVMS).
    """

    key: str
    limit: float
    used: float
    about: int | None = None
    whose: str = ACCOUNT

    @property
    def words(self) -> str:
        """For people."""
        where = {"LEASES": " in network", "RVMS": " of image"}.get(self.key, "")
        name = f"{self.key}{where} {self.about}" if where else self.key
        return f"{self.whose} {name} quota is {self.limit:g} and {self.used:g} are used"


def need(template: Mapping[str, Any]) -> Need | None:
    """The size that a VM template gives; None where it does not say so in plain numbers."""
    try:
        found = Need(float(template["CPU"]), float(template["MEMORY"]))
    except (KeyError, TypeError, ValueError):
        return None
    return found if found.cpu > 0 and found.memory > 0 else None


def host_room(hosts: Iterable[Any], wanted: Need, *, empty: bool = False) -> int | None:
    """For how many machines the hosts have room, or would have if they were ``empty``; None where
    the account sees no hosts.
    """
    shares = [host.HOST_SHARE for host in hosts if int(host.STATE) in _HOST_UP]
    if not shares:
        return None
    return sum(
        _fit(
            (int(s.MAX_CPU) - (0 if empty else int(s.CPU_USAGE))) / 100 / wanted.cpu,
            (int(s.MAX_MEM) - (0 if empty else int(s.MEM_USAGE))) / 1024 / wanted.memory,
        )
        for s in shares
    )


Part = tuple[str, int | None]
"""One thing that a quota counts: its key, and the network or image that it is about."""


def parts(
    call: Callable[..., Any], template: Mapping[str, Any], wanted: Need
) -> Callable[[Quota], float]:
    """How much of a quota one machine takes. oned is asked for images and networks only where a
    quota counts them; what it does not tell counts nothing: then a launch meets the quota.
    """
    plain = plain_parts(wanted)

    def part(quota: Quota) -> float:
        match quota.key:
            case "LEASES":
                return float(sum(n == quota.about for n in _networks(call, template)))
            case "RVMS":
                return float(sum(n == quota.about for n in requests.image_ids(template)))
            case "SYSTEM_DISK_SIZE":
                return sum(_disk_sizes(call, template))
        return plain.get(quota.key, 0.0)

    return part


def plain_parts(wanted: Need) -> Mapping[str, float]:
    """The share of a machine in the quotas that count machines, cpus and memory. One that waits for
    a place counts as running.
    """
    own = {"VMS": 1.0, "CPU": wanted.cpu, "MEMORY": wanted.memory}
    return own | {f"RUNNING_{key}": value for key, value in own.items()}


def quota_bounds(found: Iterable[Quota], part: Callable[[Quota], float]) -> list[Bound]:
    """For how many machines each quota has room, and its words."""
    pairs = ((quota, part(quota)) for quota in found)
    return [(_fit((q.limit - q.used) / each), q.words) for q, each in pairs if each > 0]


def quotas(user: Any) -> list[Quota]:  # noqa: ANN401 - a pyone object
    """The account's quotas that bound something; the defaults' where it has none."""
    return _quotas_of(user, getattr(user, "DEFAULT_USER_QUOTAS", None), ACCOUNT)


def group_quotas(group: Any) -> list[Quota]:  # noqa: ANN401 - a pyone object
    """As ``quotas``, of a group; none where it could not be read."""
    if group is None:
        return []
    return _quotas_of(group, getattr(group, "DEFAULT_GROUP_QUOTAS", None), GROUP)


def _quotas_of(holder: Any, defaults: Any, whose: str) -> list[Quota]:  # noqa: ANN401
    rows = [
        ("VM_QUOTA", "VM", _OF_MACHINES),
        ("NETWORK_QUOTA", "NETWORK", ("LEASES",)),
        ("IMAGE_QUOTA", "IMAGE", ("RVMS",)),
    ]
    found = []
    for section, item, keys in rows:
        own, usual = _rows(holder, section, item), _rows(defaults, section, item)
        for about in {**usual, **own}:
            some, others = own.get(about, {}), usual.get(about, {})
            found += [_quota(key, some, others, about, whose) for key in keys]
    return [quota for quota in found if quota.limit >= 0]


def _quota(
    key: str, own: Mapping[str, Any], usual: Mapping[str, Any], about: int | None, whose: str
) -> Quota:
    limit = _number(own.get(key), _BY_DEFAULT)
    if limit == _BY_DEFAULT:
        limit = _number(usual.get(key), _UNLIMITED)
    return Quota(key, limit, _number(own.get(f"{key}_USED"), 0.0), about, whose)


def _rows(holder: Any, section: str, item: str) -> Mapping[int | None, Mapping[str, Any]]:  # noqa: ANN401
    """A holder's quotas of one kind by the number of what they are about. Pyone 6.10 has one
    object in VM, 7.x a list, of which those of single clusters are not looked at.
    """
    found = getattr(getattr(holder, section, None), item, None)
    several = found if isinstance(found, list) else [found]
    whole = [q for q in several if q is not None and not getattr(q, "CLUSTER_IDS", None)]
    ids = [getattr(q, "ID", None) for q in whole]
    return {None if n is None else int(n): vars(q) for n, q in zip(ids, whole, strict=True)}


def _networks(call: Callable[..., Any], template: Mapping[str, Any]) -> list[int]:
    """The numbers of the networks of a template's cards; by name as far as they are shown."""
    found = template.get("NIC") or []
    cards = found if isinstance(found, list) else [found]
    numbers = [int(c["NETWORK_ID"]) for c in cards if str(c.get("NETWORK_ID") or "").isdecimal()]
    names = [str(c["NETWORK"]) for c in cards if not c.get("NETWORK_ID") and c.get("NETWORK")]
    if not names:
        return numbers
    try:
        known = {str(n.NAME): int(n.ID) for n in call("vnpool.info", ALL, -1, -1).VNET}
    except ProviderError as error:
        log.info("networks cannot be read, their quotas will be met: %s", error)
        return numbers
    return numbers + [known[name] for name in names if name in known]


def _disk_sizes(call: Callable[..., Any], template: Mapping[str, Any]) -> Iterator[float]:
    """MiB of each disk of a machine: as the template says, else as large as its image, unless that
    is persistent (which is used where it is).
    """
    for disk in requests.disks_of(template):
        if str(disk.get("SIZE") or "").isdecimal():
            yield float(disk["SIZE"])
        elif str(disk.get("IMAGE_ID") or "").isdecimal():
            try:
                image = call("image.info", int(disk["IMAGE_ID"]))
            except ProviderError as error:
                log.info("an image cannot be read, its size counts nothing: %s", error)
            else:
                yield 0.0 if int(image.PERSISTENT) else float(image.SIZE)


def _fit(*shares: float) -> int:
    # A millionth of slack: ten machines of 0.1 cpu fit a quota of 1.
    return max(math.floor(min(shares) + 1e-6), 0)


def _number(value: object, otherwise: float) -> float:
    try:
        return float(str(value)) if value is not None else otherwise
    except ValueError:
        return otherwise
