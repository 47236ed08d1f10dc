"""Which hosts of virtual machines are switched off and on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_elastic.model.hypervisor import HostState, HostView, SwitchRules
from slurm_elastic.policies.nodes.hypervisors import SwitchPlan, switches

RULES = SwitchRules(idle_s=600.0, keep=1)
NOW = 10_000.0
LONG = {"a": NOW - 900, "b": NOW - 1200, "c": NOW - 700}


def host(text: str) -> HostView:
    """``a:on:2``, ``b:off``"""
    name, state, *occupants = text.split(":")
    names = {"on": HostState.ON, "off": HostState.OFF, "starting": HostState.STARTING,
             "stopping": HostState.STOPPING, "unknown": HostState.UNKNOWN}  # fmt: skip
    return HostView(host=name, state=names[state], occupants=int(*occupants) if occupants else 0)


def plan(*hosts: str, needed: bool = False, keep: int = 1) -> SwitchPlan:
    rules = SwitchRules(idle_s=RULES.idle_s, keep=keep)
    return switches([host(h) for h in hosts], LONG, NOW, rules, is_needed=needed)


@pytest.mark.parametrize(
    ("hosts", "off"),
    [
        (("a:on", "b:on", "c:on"), ("b",)),
        (("a:on", "b:on", "c:on:1"), ("b",)),
        (("a:on:1", "b:on", "c:on:1"), ()),
        (("a:on", "b:off", "c:off"), ()),
        (("a:on", "b:on", "c:unknown"), ()),
        (("a:on", "b:on", "c:stopping"), ()),
        (("a:on", "b:on", "c:starting"), ()),
    ],
)
def test_the_host_that_is_free_longest_goes_unless_anything_is_in_doubt(
    hosts: tuple[str, ...], off: tuple[str, ...]
) -> None:
    assert plan(*hosts) == SwitchPlan(off=off)


def test_a_host_stays_for_its_time_and_while_machines_wait() -> None:
    views = [host("a:on"), host("b:on")]
    assert switches(views, {"a": NOW - 599, "b": NOW - 599}, NOW, RULES, is_needed=False) == (
        SwitchPlan()
    )
    assert switches(views, LONG, NOW, RULES, is_needed=True) == SwitchPlan()
    assert switches(views, {}, NOW, RULES, is_needed=False) == SwitchPlan(), "just seen free"


@pytest.mark.parametrize(
    ("hosts", "needed", "keep", "on"),
    [
        (("a:on:1", "b:off", "c:off"), False, 1, ("b",)),
        (("a:on:1", "b:starting", "c:off"), False, 1, ()),
        (("a:on:1", "b:starting", "c:off"), True, 1, ()),
        (("a:on:1", "b:off", "c:off"), False, 2, ("b", "c")),
        (("a:on:1", "b:off", "c:off"), False, 0, ()),
        (("a:on:1", "b:off", "c:off"), True, 0, ("b",)),
        (("a:on", "b:off", "c:off"), True, 1, ()),
        (("a:on:1", "b:unknown", "c:unknown"), True, 1, ()),
    ],
)
def test_a_host_comes_on_before_it_is_needed(
    hosts: tuple[str, ...], needed: bool, keep: int, on: tuple[str, ...]
) -> None:
    assert plan(*hosts, needed=needed, keep=keep) == SwitchPlan(on=on)


def test_a_host_that_did_not_come_up_is_the_last_and_keeps_no_other_off() -> None:
    broken = HostView(host="a", state=HostState.OFF, failed_boots=1)
    views = [broken, host("b:off"), host("c:on:1")]
    assert switches(views, LONG, NOW, RULES, is_needed=True) == SwitchPlan(on=("b",))
    again = replace(broken, state=HostState.STARTING)
    views = [again, host("b:off"), host("c:on:1")]
    assert switches(views, LONG, NOW, RULES, is_needed=True) == SwitchPlan(on=("b",))
    views = [broken, host("c:on:1")]
    assert switches(views, LONG, NOW, RULES, is_needed=True) == SwitchPlan(on=("a",))
