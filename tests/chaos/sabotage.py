"""Defects put into the product on purpose: chaos that does not find them is no chaos."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.ckptman.moves import migration
from slurm_elastic.cli.services.standby import Head
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.launching import budget, off_spot, provision
from slurm_elastic.features.orders import directives
from slurm_elastic.features.power import starting, stopping
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Usage
from slurm_elastic.policies.actions import Suspend
from slurm_elastic.policies.repair import cluster, inventory, request_rules
from slurm_elastic.state import heads
from slurm_elastic.state.heads import Fence, SupersededError
from slurm_elastic.state.ledger.launches import Launches
from slurm_elastic.state.ledger.machines import Machines
from slurm_elastic.state.ledger.stops import StopRows
from slurm_elastic.state.store import journal
from slurm_elastic.state.store.shared_journal import SharedJournal
from tests.chaos.defects.all_rooms import PUT_IN


def spending_unlocked(_stage: Any) -> None:
    """Clouds decide at once, each by what is free for itself."""
    Site.spending = _spending  # type: ignore[method-assign,assignment]


def _spending(site: Site, pool: Any) -> Any:
    return contextlib.nullcontext(site.scope(pool))


def synced_now_and_then(_stage: Any) -> None:
    """A power cut takes the last lines of the journal."""
    journal.os = _Unsynced()  # type: ignore[attr-defined]


class _Unsynced:
    def __getattr__(self, name: str) -> Any:
        return (lambda _: None) if name == "fsync" else getattr(os, name)


def intents_unwritten(_stage: Any) -> None:
    """The cloud is called first."""
    real, write = Machines.record_launch, Launches.record_intent

    def launched(self: Any, generation: str, instances: Any, now: float, *more: Any) -> None:
        spec, request, *rest = _specs.pop(generation)
        write(self._launches, spec, request, now, *rest)
        real(self, generation, instances, now, *more)

    def intend(self: Any, spec: Any, request: str, _now: float, *rest: Any) -> None:
        _specs[spec.generation] = (spec, request, *rest)

    Launches.record_intent, Machines.record_launch = intend, launched  # type: ignore[method-assign]


_specs: dict[str, tuple[Any, ...]] = {}


def one_missing_answer_is_an_end(_stage: Any) -> None:
    """A machine that one list lacks is gone."""
    inventory.is_overdue = lambda view, machine, patience: machine.missed_listings >= 1


def bought_from_an_unread_cloud(_stage: Any) -> None:
    """Whatever a new ledger lacks."""
    Site.first_unread_cloud = lambda *_: ""  # type: ignore[method-assign]


def an_old_suspend_ends_a_new_machine(_stage: Any) -> None:
    """Whatever Slurm says by now, and whenever the machine was bought."""

    def suspend(snapshot: Any, _request: Any, names: Any) -> Any:
        mine = (m.instance for m in snapshot.own_machines if m.instance.node in names)
        return [Suspend(machine=one.id, cause=Quoted(text="")) for one in mine]

    request_rules._suspend = suspend


def ended_without_an_end(_stage: Any) -> None:
    """The books go on paying for machines that have ended."""
    Machines.record_end = lambda *args: None  # type: ignore[method-assign]


def orphans_stay(_stage: Any) -> None:
    """Machines stay that Slurm has powered down and nobody asked to end."""
    real = cluster.repairs
    cluster.repairs = lambda view, patience: tuple(
        action for action in real(view, patience) if "orphan" not in action.kind
    )


def launched_again(_stage: Any) -> None:
    """A launch without an answer is made once more, under another name."""
    real = provision.launch

    def launch(site: Any, spec: Any, request: str, **more: Any) -> Any:
        answer = real(site, spec, request, **more)
        if answer.outcome.value == "in doubt":
            site.ledger.launches.record_failure(spec.generation, "no answer", site.now())
        return answer

    provision.launch = launch


def stopped_machines_cost_nothing(_stage: Any) -> None:
    """Their disks are paid all the same."""
    real = StopRows.record_stopped

    def done(self: Any, cloud: str, prices: Any, now: float) -> None:
        real(self, cloud, dict.fromkeys(prices, 0.0), now)

    StopRows.record_stopped = done  # type: ignore[method-assign]


def stopped_machines_stay(_stage: Any) -> None:
    """However many, however old, and of whatever image."""
    cluster.unwanted = lambda *args: {}  # type: ignore[assignment]


def more_are_stopped_than_a_pool_keeps(_stage: Any) -> None:
    """All that are idle are, and none of them ends."""
    stopped_machines_stay(_stage)
    real = stopping.to_stop
    stopping.to_stop = lambda doomed, _there, *rest, **more: real(doomed, (), *rest, **more)


def started_beyond_the_limits(_stage: Any) -> None:
    """As if a stopped machine cost as much as one that runs."""
    real = starting.next_launch

    def launch(
        request: Any, todo: Any, had: Any, offers: Any, scope: Any, *rest: Any, **more: Any
    ) -> Any:
        return real(request, todo, had, offers, replace(scope, usage=Usage()), *rest, **more)

    starting.next_launch = launch


def started_before_it_is_written_down(_stage: Any) -> None:
    """The cloud is called first."""
    real = starting._intend

    def intend(site: Any, request: Any, startable: Any, *rest: Any) -> Any:
        instance = startable.machine.instance
        with contextlib.suppress(ProviderError):
            site.providers[instance.cloud].start(instance.id)
        return real(site, request, startable, *rest)

    starting._intend = intend


def any_image_is_whole(_stage: Any) -> None:
    """Nobody looks at what a save has left."""
    migration._is_whole = lambda *_, **__: True


def pauses_unheard(_stage: Any) -> None:
    """Machines start where an operator has ordered that none does."""
    budget.stopped_pools = directives.stopped_pools = lambda *_: {}
    directives.stopped_nodes = lambda *_: {}


def limits_of_operators_unheard(_stage: Any) -> None:
    """The configuration alone counts."""
    budget.limit_changes = lambda *_: ()


def a_fence_that_always_passes(_stage: Any) -> None:
    """A head that stood still goes on where it was."""
    Fence.require = lambda _: None  # type: ignore[method-assign]


def a_fence_that_passes_in_doubt(_stage: Any) -> None:
    """While the directory cannot be read."""
    real = Fence.require

    def require(self: Any) -> None:
        try:
            real(self)
        except SupersededError:
            raise
        except OSError:
            return

    Fence.require = require  # type: ignore[method-assign]


def lines_without_a_fence(_stage: Any) -> None:
    """Clouds alone are kept from a head that acts no more."""
    for name in ("locked", "append", "cut", "_give_name"):
        setattr(SharedJournal, name, getattr(journal.Journal, name))


def orders_without_a_fence(_stage: Any) -> None:
    """Slurm is not kept from it."""
    Head.fenced_slurm = lambda _, client: client  # type: ignore[method-assign]


def a_new_head_that_knows_nothing(_stage: Any) -> None:
    """It begins with an empty journal, and goes by what it finds."""
    real = heads.Epochs.take

    def take(self: Any, host: str) -> Any:
        before, found = self.newest(), real(self, host)
        if before is not None and found.number > before.number:
            for path in (self.directory / "journal").glob("*.jsonl"):
                path.unlink()
        return found

    heads.Epochs.take = take  # type: ignore[method-assign]


def a_new_head_that_does_not_wait(_stage: Any) -> None:
    """What Slurm has forgotten ends before it asks for it again."""
    real = Head.begins

    def begins(self: Any, ended: Any) -> bool:
        acts = real(self, ended)
        self._settles = None
        return acts

    Head.begins = begins  # type: ignore[method-assign]


def spot_on_any_node(_stage: Any) -> None:
    """The nodes that never have spot machines get some."""
    off_spot.never_on_spot = lambda _pool, _node: None  # type: ignore[assignment]


def spot_for_any_job(_stage: Any) -> None:
    """Jobs that must not lose their machine get spot machines."""
    off_spot.bears_loss = lambda _job, _accounts: True  # type: ignore[assignment]


OF_TWO_HEADS: dict[str, Callable[[Any], None]] = {
    one.__name__: one
    for one in (
        a_fence_that_always_passes, a_fence_that_passes_in_doubt, lines_without_a_fence,
        orders_without_a_fence, a_new_head_that_knows_nothing, a_new_head_that_does_not_wait,
    )
}  # fmt: skip
ALL: dict[str, Callable[[Any], None]] = {
    one.__name__: one
    for one in (
        spending_unlocked, synced_now_and_then, intents_unwritten, one_missing_answer_is_an_end,
        bought_from_an_unread_cloud, an_old_suspend_ends_a_new_machine, ended_without_an_end,
        orphans_stay, launched_again, stopped_machines_cost_nothing, stopped_machines_stay, more_are_stopped_than_a_pool_keeps,
        started_beyond_the_limits, started_before_it_is_written_down, any_image_is_whole,
        pauses_unheard, limits_of_operators_unheard, spot_on_any_node, spot_for_any_job,
    )
} | OF_TWO_HEADS | PUT_IN  # fmt: skip
