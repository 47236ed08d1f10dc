"""Notices for hosts that OpenNebula's administrators take out of service, and their meaning for
machines. Few accounts may see hosts; without that right there are no such notices.

States: "Hosts" of the OpenNebula documentation. A disabled host gets no new machines and keeps its
own. The machines of an offline host are leaving or gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from slurm_elastic.model.cluster import InstanceState, Notice, NoticeKind
from slurm_elastic.providers.opennebula.convert import VmFields, instance_id, state_of

DISABLED, MONITORING_DISABLED, OFFLINE = 4, 7, 8


class OneOutOfService(Struct, frozen=True):
    """The meaning of a host's state for its machines."""

    kind: NoticeKind
    word: str


_MEANING_BY_STATE = {
    DISABLED: OneOutOfService(NoticeKind.REBALANCE, "disabled"),
    MONITORING_DISABLED: OneOutOfService(NoticeKind.REBALANCE, "disabled"),
    OFFLINE: OneOutOfService(NoticeKind.INTERRUPTION, "offline"),
}


def standing(
    cloud: str, call: Callable[..., Any], live: Callable[[], Iterable[VmFields]], now: float
) -> Sequence[Notice]:
    """One notice for each machine on such a host. Machines are listed only if there is such
    a host.
    """
    hosts: Mapping[int, tuple[str, OneOutOfService]] = {
        int(host.ID): (str(host.NAME), _MEANING_BY_STATE[int(host.STATE)])
        for host in call("hostpool.info").HOST
        if int(host.STATE) in _MEANING_BY_STATE
    }
    if not hosts:
        return ()
    affected = [machine for machine in live() if machine.host is not None and machine.host in hosts]
    notices = []
    for machine in affected:
        name, meaning = hosts[machine.host or 0]
        if state_of(machine) is InstanceState.RUNNING:
            reason = f"OpenNebula: host {name} is {meaning.word}"
            number = instance_id(cloud, machine.id)
            notices.append(Notice(instance=number, kind=meaning.kind, seen=now, reason=reason))
    return notices
