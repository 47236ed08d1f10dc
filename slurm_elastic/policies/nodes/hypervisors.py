"""Decides which hosts of virtual machines are switched on or off. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from slurm_elastic.model.hypervisor import HostState, HostView, SwitchRules


class SwitchPlan(Struct, frozen=True, kw_only=True):
    """The hosts to switch now. ``on`` or ``off`` is empty."""

    on: tuple[str, ...] = ()
    off: tuple[str, ...] = ()


def free_hosts(views: Sequence[HostView]) -> list[str]:
    """Return the switched-on hosts without a machine of any owner."""
    return [v.host for v in views if v.state is HostState.ON and v.occupants == 0]


def switches(
    views: Sequence[HostView],
    free_since: Mapping[str, float],
    now: float,
    rules: SwitchRules,
    *,
    is_needed: bool,
) -> SwitchPlan:
    """Decide for one look. ``free_since``: by free host, since when it has had no machine.
    ``is_needed``: machines wait for room.

    One host goes off in a look, and none while machines wait or while the state of any host is not
    certain: a host that cannot be read may be the only one with room.
    """
    free = free_hosts(views)
    # A host that did not come up before may be broken. It keeps no other host off: it does not
    # count while it boots once more, and it is the last to be switched on.
    starting = [v for v in views if v.state is HostState.STARTING and not v.failed_boots]
    off_views = sorted(
        (v for v in views if v.state is HostState.OFF), key=lambda view: view.failed_boots
    )
    off = [view.host for view in off_views]
    lacking = rules.keep - len(free) - len(starting)
    # If a host is free, the machines do not wait for room. They wait for a limit, for example.
    if is_needed and not starting and not free:
        lacking = max(lacking, 1)
    if lacking > 0:
        return SwitchPlan(on=tuple(off[:lacking]))
    is_certain = all(v.state in (HostState.ON, HostState.OFF) for v in views)
    if is_needed or not is_certain or len(free) <= rules.keep:
        return SwitchPlan()
    due = [host for host in free if now - free_since.get(host, now) >= rules.idle_s]
    # First the host with the longest free time, because it is the least likely to be used.
    due.sort(key=lambda host: free_since[host])
    return SwitchPlan(off=tuple(due[:1]))
