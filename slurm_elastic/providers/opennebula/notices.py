"""Hosts that OpenNebula's administrators take out of service, and what that means for machines on
them. Hosts are shown to few accounts: without, there are no such notices.

States: "Hosts" of the OpenNebula documentation. A disabled host gets no new machines and keeps
those it has; of one that is offline they are going, or gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from slurm_elastic.model.cluster import InstanceState, Notice, NoticeKind
from slurm_elastic.providers.opennebula.convert import Vm, instance_id, state_of

DISABLED, MONITORING_DISABLED, OFFLINE = 4, 7, 8


class Out(Struct, frozen=True):
    """The meaning of a host's state for its machines."""

    kind: NoticeKind
    word: str


_OUT = {
    DISABLED: Out(NoticeKind.REBALANCE, "disabled"),
    MONITORING_DISABLED: Out(NoticeKind.REBALANCE, "disabled"),
    OFFLINE: Out(NoticeKind.INTERRUPTION, "offline"),
}


def standing(
    cloud: str, call: Callable[..., Any], live: Callable[[], Iterable[Vm]], now: float
) -> Sequence[Notice]:
    """One for each machine on such a host; machines are only asked for where there is one."""
    hosts: Mapping[int, tuple[str, Out]] = {
        int(host.ID): (str(host.NAME), _OUT[int(host.STATE)])
        for host in call("hostpool.info").HOST
        if int(host.STATE) in _OUT
    }
    if not hosts:
        return ()
    on_these = [one for one in live() if one.host is not None and one.host in hosts]
    found = []
    for one in on_these:
        name, out = hosts[one.host or 0]
        if state_of(one) is InstanceState.RUNNING:
            reason = f"OpenNebula: host {name} is {out.word}"
            number = instance_id(cloud, one.id)
            found.append(Notice(instance=number, kind=out.kind, seen=now, reason=reason))
    return found
