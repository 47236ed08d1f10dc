"""Threads touch what they share under its lock alone: no method forgets that, whichever thread
comes first in it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

import pytest

PRODUCT = "slurm_elastic."


class Guard(NamedTuple):
    """``attributes`` of a class (module:name) that belong to ``lock``; the functions ``free`` look at
    them without, where one word is read that may be of a moment ago.
    """

    of: str
    lock: str
    attributes: tuple[str, ...]
    free: tuple[str, ...] = ()


GUARDS = (
    Guard("checkpointers.fake:FakeCheckpointer", "_lock", ("_images", "_number", "calls", "held")),
    Guard("checkpointers.ssh:Shells", "_changing", ("_open", "_hosts"), free=("close",)),
    Guard("ckptman.executor:KeyedExecutor", "_lock", ("_busy",)),
    Guard("ckptman.executor:_Lane", "_wake", ("_waiting", "_idle")),
    Guard("ckptman.journal:Journal", "_lock", ("_decisions", "_counts")),
    Guard("ckptman.orders:Orders", "_lock", ("_waiting", "_begun", "_carried")),
    Guard("ckptman.site:JobList", "_lock", ("_jobs", "_begun"), free=("last", "knows")),
    Guard("controller.job_starts:JobStarts", "_lock", ("_first_at", "_last_at")),
    Guard("controller.munge_keys:MungeKeys", "_lock", ("_known",)),
    Guard("controller.requests:Requests", "_lock", ("_parts", "_served")),
    Guard("controller.requeues:Requeues", "_lock", ("_expected",), free=("__bool__", "tick")),
    Guard("controller.tick_reading:TickReading", "_lock", ("_began", "_found")),
    Guard("controller.usage_counters:CallTimes", "_lock", ("_calls",)),
    Guard("watch.door.answers:Refreshed", "_reading", ("_value", "_until"), free=("last",)),
    Guard("machine.local.records:Register", "changing", ("_records",), free=("all", "get")),
    Guard("providers.base.prices.book:PriceBook", "_lock", ("_points",)),
    Guard("providers.aws.client:Api", "_lock", ("_ec2",), free=("send",)),
    # The time is asked there, too: for a bucket it never goes back.
    Guard("providers.aws.rate_limit:Pace", "_lock", ("_requests", "_clock")),
    Guard("providers.aws.templates:Templates", "_lock", ("_there",)),
    Guard("providers.base.hosted:HostedProvider", "_lock", ("_ended",)),
    Guard("providers.base.hosts:Hosts", "_lock", ("_open",)),
    Guard("providers.base.kept:Kept", "_lock", ("_told",)),
    Guard("providers.base.ours:Ours", "_lock", ("unclear",), free=("read",)),
    Guard("providers.base.reopened:Reopened", "_lock", ("_connection",)),
    Guard("providers.base.one_by_one:OneByOne", "_lock", ("_made", "_ended")),
    Guard("providers.base.unconfirmed:UnconfirmedOrders", "_lock", ("_since",)),
    Guard("providers.docker.provider:DockerProvider", "_lock", ("_killed",)),
    Guard("providers.fake.provider:FakeAccount", "lock", ("launches",)),
    Guard("providers.opennebula.instances:OneMachines", "_lock", ("_leaving",)),
    Guard("providers.opennebula.scheduling:Placements", "_lock", ("_seen",)),
    Guard("providers.openstack.instances:Servers", "_lock", ("_taken",)),
    Guard("providers.openstack.provider:OpenStackProvider", "_lock", ("_failed", "_launching")),
    Guard("sandbox.ec2_front:Front", "_lock", ("_tokens", "_fleets")),
    Guard("sandbox.ec2_faults:Faults", "_lock", ("_faults",)),
    Guard("sandbox.opennebula:Front", "_lock", ("cloud", "calls")),
    Guard("slurm.client.cli:SharedReading", "_counting", ("_callers",)),
    Guard("slurm.client.fake:FakeSlurm", "_lock", ("_nodes", "_jobs", "calls")),
    Guard("slurm.client.pyslurm_client:PyslurmClient", "_lock", ("_child",)),
    Guard("state.store.store:Store", "_gather", ("_tickets",)),
    Guard("state.store.store:Store", "lock", ("_db", "_memory", "_depth", "_version", "_facts")),
)  # fmt: skip


class _Guarded:
    """An attribute that is there from the constructor on, and then the lock's."""

    def __init__(self, name: str, guard: Guard) -> None:
        self._name, self._guard = name, guard

    def __get__(self, one: Any, _: object) -> Any:
        self._check(one)
        try:
            return one.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, one: Any, value: Any) -> None:
        self._check(one)
        one.__dict__[self._name] = value

    def _check(self, one: Any) -> None:
        frame = sys._getframe(2)
        above = frame.f_back
        # Nobody else has what is being made, nor what its constructor calls.
        is_made = "__init__" in (frame.f_code.co_name, above.f_code.co_name if above else "")
        is_free = is_made or frame.f_code.co_name in self._guard.free
        if not frame.f_globals["__name__"].startswith(PRODUCT) or is_free:
            return
        lock = getattr(one, self._guard.lock)
        held = getattr(lock, "_is_owned", None) or lock.locked
        where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
        assert held(), f"{self._name} is touched without {self._guard.lock} in {where}"


def guard_all(patch: pytest.MonkeyPatch) -> None:
    """For one test, of one thread."""
    for guard in GUARDS:
        module, _, name = guard.of.partition(":")
        owner = getattr(importlib.import_module(PRODUCT + module), name)
        for attribute in guard.attributes:
            patch.setattr(owner, attribute, _Guarded(attribute, guard), raising=False)
