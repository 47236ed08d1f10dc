"""How many more machines an account can have, according to its quota, the hosts and the waiting
queue.

The scheduler never refuses a machine; a machine without a place stays PENDING. Therefore the room
is read before an order. Few accounts may see hosts. If the account may not read its group, it
learns of the group's quotas only when a launch meets them.
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
"""The filter for everything that an account may see."""
ACCOUNT, GROUP = "the account's", "the group's"
"""The owner of a quota. The text about a quota begins with it."""
_HOST_UP = frozenset({1, 2})  # MONITORING_MONITORED MONITORED
_UNLIMITED, _BY_DEFAULT = -2.0, -1.0
_OF_MACHINES = ("VMS", "CPU", "MEMORY", "RUNNING_VMS", "RUNNING_CPU", "RUNNING_MEMORY",
                "SYSTEM_DISK_SIZE")  # fmt: skip

Bound = tuple[int, str]
"""The largest number of machines, and the reason."""


def bounds(
    call: Callable[..., Any],
    template: Mapping[str, Any],
    group: Any = None,  # noqa: ANN401 - a pyone object
    in_line: Collection[int] = (),
) -> list[Bound]:
    """The bounds on more machines of a template. ``call`` asks oned. ``group``: the account's
    group, or None if the account may not read it. ``in_line``: our machines that the scheduler will
    still place, whatever message they have (``scheduling``).
    """
    per_machine = need(template)
    if per_machine is None:
        return []
    user = call("user.info", -1)
    all_bounds = quota_bounds(
        [*quotas(user), *group_quotas(group)], parts(call, template, per_machine)
    )
    # The queue is read before the hosts. A machine placed between the two readings then counts
    # twice, and never not at all.
    # Machines of all accounts wait in one queue, as far as we may see them.
    waiting = call("vmpool.info", ALL, -1, -1, PENDING).VM
    room = host_room(call("hostpool.info").HOST, per_machine)
    if room is not None:
        # A machine that the scheduler could not place takes no room from the machines behind it.
        queue = sum(not _message(r) or int(r.ID) in in_line for r in waiting)
        reason = f"the hosts have room for {room} and {queue} machines wait for a place"
        all_bounds.append((max(room - queue, 0), reason))
    passed_over = [r for r in waiting if int(r.ID) not in in_line]
    stuck_reason = stuck(passed_over, int(user.ID), per_machine)
    if stuck_reason:
        all_bounds.append((0, f"a machine of no more needs waits for a place: {stuck_reason}"))
    return all_bounds


def _message(record: Any) -> str:  # noqa: ANN401 - a pyone object
    return str((record.USER_TEMPLATE or {}).get("SCHED_MESSAGE") or "")


def stuck(waiting: Iterable[Any], uid: int, per_machine: Need) -> str:
    """Why a machine of this account that needs no more than ``per_machine`` finds no place; empty
    if there is no such machine. Machines of other accounts may have requirements of their own, so
    they do not count.
    """
    for record in waiting:
        message, waiting_need = _message(record), need(record.TEMPLATE or {})
        if not message or int(record.UID) != uid or waiting_need is None:
            continue
        if waiting_need.cpu <= per_machine.cpu and waiting_need.memory <= per_machine.memory:
            return undated(message)
    return ""


class Need(Struct, frozen=True):
    """The resources that the scheduler reserves for a machine: physical CPUs and MiB."""

    cpu: float
    memory: float


class OneBound(Struct, frozen=True):
    """A limit of an account or its group. ``key``: oned's name (VMS, MEMORY in MiB, LEASES ...).
    ``about``: the number of the network (LEASES) or image (RVMS).
    """

    key: str
    limit: float
    used: float
    about: int | None = None
    whose: str = ACCOUNT

    @property
    def text(self) -> str:
        """The quota as text for people."""
        where = {"LEASES": " in network", "RVMS": " of image"}.get(self.key, "")
        name = f"{self.key}{where} {self.about}" if where else self.key
        return f"{self.whose} {name} quota is {self.limit:g} and {self.used:g} are used"


def need(template: Mapping[str, Any]) -> Need | None:
    """The size in a VM template; None if the template does not give it in plain numbers."""
    try:
        size = Need(float(template["CPU"]), float(template["MEMORY"]))
    except (KeyError, TypeError, ValueError):
        return None
    return size if size.cpu > 0 and size.memory > 0 else None


def host_room(hosts: Iterable[Any], per_machine: Need, *, empty: bool = False) -> int | None:
    """The number of machines for which the hosts have room now, or would have if they were
    ``empty``. None if the account sees no hosts.
    """
    shares = [host.HOST_SHARE for host in hosts if int(host.STATE) in _HOST_UP]
    if not shares:
        return None
    # oned counts hundredths of a CPU, and KiB of memory.
    return sum(
        _fit(
            (int(s.MAX_CPU) - (0 if empty else int(s.CPU_USAGE))) / 100 / per_machine.cpu,
            (int(s.MAX_MEM) - (0 if empty else int(s.MEM_USAGE))) / 1024 / per_machine.memory,
        )
        for s in shares
    )


Part = tuple[str, int | None]
"""A thing that a quota counts: its key, and the network or image that it is about."""


def parts(
    call: Callable[..., Any], template: Mapping[str, Any], per_machine: Need
) -> Callable[[OneBound], float]:
    """A function that returns how much of a quota one machine uses.

    oned is asked for images and networks only if a quota counts them. Anything that it does not
    show counts as nothing, so a launch may then meet the quota.
    """
    plain_shares = plain_parts(per_machine)

    def share_of(quota: OneBound) -> float:
        match quota.key:
            case "LEASES":
                return float(sum(n == quota.about for n in _networks(call, template)))
            case "RVMS":
                return float(sum(n == quota.about for n in requests.image_ids(template)))
            case "SYSTEM_DISK_SIZE":
                return sum(_disk_sizes(call, template))
        return plain_shares.get(quota.key, 0.0)

    return share_of


def plain_parts(per_machine: Need) -> Mapping[str, float]:
    """How much one machine uses of the quotas for machines, CPUs and memory. A machine that waits
    for a place counts as running.
    """
    shares = {"VMS": 1.0, "CPU": per_machine.cpu, "MEMORY": per_machine.memory}
    return shares | {f"RUNNING_{key}": value for key, value in shares.items()}


def quota_bounds(
    quotas_found: Iterable[OneBound], part: Callable[[OneBound], float]
) -> list[Bound]:
    """The number of machines for which each quota has room, and its text."""
    pairs = ((quota, part(quota)) for quota in quotas_found)
    return [(_fit((q.limit - q.used) / each), q.text) for q, each in pairs if each > 0]


def quotas(user: Any) -> list[OneBound]:  # noqa: ANN401 - a pyone object
    """The account's quotas that limit something. A default quota applies if the account has none of
    its own.
    """
    return _quotas_of(user, getattr(user, "DEFAULT_USER_QUOTAS", None), ACCOUNT)


def group_quotas(group: Any) -> list[OneBound]:  # noqa: ANN401 - a pyone object
    """The quotas of a group; none if the group could not be read."""
    if group is None:
        return []
    return _quotas_of(group, getattr(group, "DEFAULT_GROUP_QUOTAS", None), GROUP)


def _quotas_of(holder: Any, defaults: Any, whose: str) -> list[OneBound]:  # noqa: ANN401
    rows = [
        ("VM_QUOTA", "VM", _OF_MACHINES),
        ("NETWORK_QUOTA", "NETWORK", ("LEASES",)),
        ("IMAGE_QUOTA", "IMAGE", ("RVMS",)),
    ]
    all_quotas = []
    for section, item, keys in rows:
        own_rows, default_rows = _rows(holder, section, item), _rows(defaults, section, item)
        for about in {**default_rows, **own_rows}:
            own_row, default_row = own_rows.get(about, {}), default_rows.get(about, {})
            all_quotas += [_quota(key, own_row, default_row, about, whose) for key in keys]
    return [quota for quota in all_quotas if quota.limit >= 0]


def _quota(
    key: str,
    own_row: Mapping[str, Any],
    default_row: Mapping[str, Any],
    about: int | None,
    whose: str,
) -> OneBound:
    limit = _number(own_row.get(key), _BY_DEFAULT)
    if limit == _BY_DEFAULT:
        limit = _number(default_row.get(key), _UNLIMITED)
    return OneBound(key, limit, _number(own_row.get(f"{key}_USED"), 0.0), about, whose)


def _rows(holder: Any, section: str, item: str) -> Mapping[int | None, Mapping[str, Any]]:  # noqa: ANN401
    """A holder's quotas of one kind, by the number of the network or image. Pyone 6.10 returns one
    object in VM, 7.x a list. Quotas of single clusters in this list are ignored.
    """
    rows = getattr(getattr(holder, section, None), item, None)
    row_list = rows if isinstance(rows, list) else [rows]
    of_all_clusters = [q for q in row_list if q is not None and not getattr(q, "CLUSTER_IDS", None)]
    ids = [getattr(q, "ID", None) for q in of_all_clusters]
    return {
        None if n is None else int(n): vars(q) for n, q in zip(ids, of_all_clusters, strict=True)
    }


def _networks(call: Callable[..., Any], template: Mapping[str, Any]) -> list[int]:
    """The numbers of the networks of a template's network cards. A network given by name must be
    visible to the account.
    """
    nics = template.get("NIC") or []
    cards = nics if isinstance(nics, list) else [nics]
    numbers = [int(c["NETWORK_ID"]) for c in cards if str(c.get("NETWORK_ID") or "").isdecimal()]
    names = [str(c["NETWORK"]) for c in cards if not c.get("NETWORK_ID") and c.get("NETWORK")]
    if not names:
        return numbers
    try:
        number_by_name = {str(n.NAME): int(n.ID) for n in call("vnpool.info", ALL, -1, -1).VNET}
    except ProviderError as error:
        log.info("networks cannot be read, a launch over their quotas fails: %s", error)
        return numbers
    return numbers + [number_by_name[name] for name in names if name in number_by_name]


def _disk_sizes(call: Callable[..., Any], template: Mapping[str, Any]) -> Iterator[float]:
    """The size of each disk of a machine (MiB): from the template, or else from the image. A
    persistent image is used in place and counts 0.
    """
    for disk in requests.disks_of(template):
        if str(disk.get("SIZE") or "").isdecimal():
            yield float(disk["SIZE"])
        elif str(disk.get("IMAGE_ID") or "").isdecimal():
            try:
                image = call("image.info", int(disk["IMAGE_ID"]))
            except ProviderError as error:
                log.info("an image cannot be read, its size is not counted: %s", error)
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
