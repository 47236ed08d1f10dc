"""Machines that were stopped: started for their nodes before any are bought, or ended.

A start is a launch in all but the call: it is within the limits, its intent is in the ledger before
the cloud is asked, and where the cloud refuses it, the machine ends and the node gets a fresh one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from slurm_elastic.base.errors import (
    CapacityError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.base.faults import reach
from slurm_elastic.base.units import money
from slurm_elastic.controller.context import Site, new_generation
from slurm_elastic.controller.ending import terminate
from slurm_elastic.controller.extensions import Caps, Extensions
from slurm_elastic.controller.launch import assign_addresses, call_with_retries
from slurm_elastic.controller.snapshot import CORRELATION
from slurm_elastic.features.stopping import recipes_of
from slurm_elastic.model.causes.machine_ends import CannotBeStarted
from slurm_elastic.model.cluster import Instance, NodeRequest, Offer
from slurm_elastic.model.protocols import Stops
from slurm_elastic.policies import actions
from slurm_elastic.policies.growth.stopped import to_start
from slurm_elastic.policies.launch.gang import Gang, part_of
from slurm_elastic.policies.launch.next_launch import next_launch
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot
from slurm_elastic.state.ledger import Launch, Machine

log = logging.getLogger(__name__)


def join(site: Site) -> Extensions:
    """Start stopped machines if pools keep some. The repair of those that are left of an earlier
    configuration joins in any case.
    """
    kept = any(pool.stopped for pool in site.pools.values())
    return Extensions(
        serve_before_buying=[partial(start_stopped, site)] if kept else [],
        doers=[
            (actions.StartAgain, partial(start_again, site)),
            (actions.RunsAgain, partial(runs_again, site)),
            (actions.EndStopped, partial(end_stopped, site)),
        ],
    )


def start_stopped(
    site: Site, request: NodeRequest, todo: Sequence[Gang], offers: Sequence[Offer], caps: Caps
) -> set[str]:
    """Start the stopped machines of the nodes of ``todo``, as far as limits let them; the nodes
    that need no other machine.
    """
    cloud = request.pool.cloud
    stopped = [m for m in site.ledger.stops.machines() if m.instance.cloud == cloud]
    nodes = {node for gang in todo for node in gang.nodes}
    mine = [m for m in stopped if m.instance.node in nodes]
    if not mine:
        return set()
    recipes = recipes_of(site, cloud, mine)
    fit = to_start(mine, nodes, request.pool, recipes, site.now())
    prices = {offer.key: offer for offer in offers}
    fit = [m for m in fit if m.instance.offer_key in prices]
    fit.sort(key=lambda m: (prices[m.instance.offer_key].price, m.instance.node))
    had = set()
    for machine in fit:
        if _start(site, request, machine, prices[machine.instance.offer_key], caps):
            had.add(machine.instance.node)
    return had


def _start(site: Site, request: NodeRequest, machine: Machine, offer: Offer, caps: Caps) -> bool:
    """Whether its node needs no other machine."""
    begun = _intend(site, request, machine, offer, caps)
    if begun is None:
        return False
    one, jobs = begun.instance, [f"job:{job}" for job in begun.jobs]
    reach("start.after-intent")
    answer = _call(site, one)
    if answer.why is None:
        reach("start.after-call")
        what = (
            f"{one.id}, which was stopped: {one.instance_type} in {one.zone}, {money(one.price)}/h"
        )
        log.info("started request=%s node=%s id=%s", request.id, one.node, one.id)
        site.record(request.id, "started", (one.node, *jobs), what)
        if site.clouds[one.cloud].node_address == "provider" and one.address:
            assign_addresses(site, {one.node: one.address})
        reach("start.after-result")
    elif answer.why:
        site.record(request.id, "start-refused", (one.node, *jobs), f"{one.id}: {answer.why}")
        _give_up(site, begun, machine.instance.price, answer, request.id)
        return False
    return True


def _intend(
    site: Site, request: NodeRequest, machine: Machine, offer: Offer, caps: Caps
) -> Machine | None:
    """Decide, and write it down; None where a limit or an exclusion is in the way."""
    node = machine.instance.node
    mine, alone = part_of(request, [node]), (Gang(nodes=(node,)),)
    reach("start.before-intent")
    with site.spending(request.pool) as scope:
        now = site.now()
        decided = next_launch(
            # The room that the cloud has left is no bound: a stopped machine may have its own.
            mine, alone, (), [replace(offer, free=None)], scope, now,
            caps=caps, keys=site.config.ranking,
        )  # fmt: skip
        if not decided.nodes:
            return None
        row = Launch(
            generation=new_generation(now, site.spool.newest(), site.epoch),
            request=request.id,
            pool=request.pool.name,
            cloud=offer.cloud,
            nodes=(node,),
            jobs=mine.jobs,
            offer=offer,
            created=now,
            recipe=site.ledger.launches.recipes([machine.instance.generation]).get(
                machine.instance.generation, ""
            ),
        )
        return site.ledger.stops.start(row, machine, now)


class _Answer(NamedTuple):
    """``why`` a machine does not run: None where it does, "" where that is not known. ``ran``:
    whether it may have run before it was gone.
    """

    why: str | None
    ran: bool = False


def _call(site: Site, one: Instance, *, again: bool = False) -> _Answer:
    """Start it; ``again``: a call of an earlier round may have taken effect."""
    provider = site.providers[one.cloud]
    if not isinstance(provider, Stops):
        return _Answer("its cloud starts no stopped machines")
    in_doubt = again

    def start() -> None:
        nonlocal in_doubt
        try:
            provider.start(one.id)
        except TransientError:
            in_doubt = True
            raise

    try:
        start() if again else call_with_retries(site, start)
    except (CapacityError, QuotaError) as error:
        return _Answer(str(error))
    except InstanceNotFound as error:
        return _Answer(str(error), ran=in_doubt)
    except ProviderError as error:
        # After a call that may have taken effect, only a cloud without room, or without the
        # machine, tells that it does not run.
        if not in_doubt:
            return _Answer(str(error))
        log.warning("start in doubt node=%s id=%s error=%s", one.node, one.id, error)
        return _Answer("")
    except Exception:
        log.exception("start failed in an unknown way node=%s id=%s", one.node, one.id)
        return _Answer("")
    return _Answer(None)


def _give_up(site: Site, machine: Machine, disk: float, answer: _Answer, correlation: str) -> None:
    """It ends. It cost its disk alone ($/h), unless it may have run meanwhile."""
    one, cause = machine.instance, CannotBeStarted(error=answer.why or "")
    log.warning("start refused node=%s id=%s error=%s", one.node, one.id, answer.why)
    price = one.price if answer.ran else disk
    site.ledger.stops.start_refused(one.cloud, one.id, price, cause, site.now())
    terminate(site, one.cloud, [machine], cause, correlation)


# What the repair does of it.


def start_again(site: Site, snapshot: ClusterSnapshot, some: Sequence[actions.StartAgain]) -> None:
    """Repeat the start of these machines. A machine that cannot be started is ended, and its node
    gets another one.
    """
    cloud = snapshot.terms.cloud
    if site.ledger.end_only:
        return
    wanted = {a.machine: a.reason for a in some}
    for machine in site.ledger.machines.live():
        one = machine.instance
        if one.cloud != cloud or one.id not in wanted or not machine.is_wanted:
            continue
        answer = _call(site, one, again=True)
        kind, said = "started", wanted[one.id]
        if answer.why is not None:
            kind, said = "start-refused", f"{said}: {answer.why or 'in doubt'}"
        site.record(CORRELATION, kind, (one.node,), said)
        if answer.why:
            disk = site.pool_of[one.node].stopped_price if one.node in site.pool_of else 0.0
            _give_up(site, machine, disk, answer, CORRELATION)


def runs_again(site: Site, snapshot: ClusterSnapshot, some: Sequence[actions.RunsAgain]) -> None:
    """Record that these machines run, so that they are paid as machines at work."""
    wanted = {a.machine: a.cause for a in some}
    for instance in snapshot.listed or ():
        if instance.id in wanted:
            site.ledger.stops.runs_again(instance, site.now())
            site.record(CORRELATION, "runs-again", (instance.node,), wanted[instance.id])


def end_stopped(site: Site, snapshot: ClusterSnapshot, some: Sequence[actions.EndStopped]) -> None:
    """End these stopped machines, the intent first."""
    cloud = snapshot.terms.cloud
    machines = {m.instance.id: m for m in site.ledger.stops.machines() if m.instance.cloud == cloud}
    for cause in dict.fromkeys(a.cause for a in some):
        doomed = [machines[a.machine] for a in some if a.cause == cause if a.machine in machines]
        ids = [m.instance.id for m in doomed]
        site.ledger.stops.end(cloud, ids, cause, site.now())
        terminate(site, cloud, doomed, cause, CORRELATION)
