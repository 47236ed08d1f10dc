"""Starts stopped machines for their nodes before machines are bought, or ends them.

A start follows the same rules as a launch; only the call differs. It must be within the limits, and
its intent is in the ledger before the call. If the cloud refuses the start, the machine is ended
and its node gets a new one: in the same request, or, if only the repetition of a lost call is
refused, after the grace for a lost request.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.base.faults import reach
from slurm_elastic.base.grouping import group_by
from slurm_elastic.controller.context import Site, new_generation
from slurm_elastic.controller.ending import terminate
from slurm_elastic.controller.extensions import Caps, Extensions
from slurm_elastic.controller.launching.awaited_nodes import AwaitedNodes
from slurm_elastic.controller.launching.launch import assign_addresses, call_with_retries
from slurm_elastic.controller.launching.open_launches import find_stop
from slurm_elastic.controller.snapshot import CORRELATION
from slurm_elastic.features.power.stopping import recipes_of
from slurm_elastic.model.causes.composed import RepetitionFailed
from slurm_elastic.model.causes.machine_ends import CannotBeStarted
from slurm_elastic.model.causes.purchases import MachineStarted, StartRefused
from slurm_elastic.model.cluster import STANDING, Instance, NodeRequest, Offer
from slurm_elastic.model.protocols import Stops
from slurm_elastic.policies import actions
from slurm_elastic.policies.growth.stopped import (
    Startable,
    departing,
    gangs_with_room,
    startables,
    to_start,
)
from slurm_elastic.policies.launch.gang import Gang, part_of
from slurm_elastic.policies.launch.next_launch import next_launch
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot
from slurm_elastic.state.ledger import Launch, Machine

log = logging.getLogger(__name__)


def join(site: Site) -> Extensions:
    """Start stopped machines if a pool keeps some. The repair's actions join in any case, because
    stopped machines of an earlier configuration may be left.
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
    site: Site,
    request: NodeRequest,
    todo: Sequence[Gang],
    offers: Sequence[Offer],
    caps: Caps,
    awaited: AwaitedNodes,
) -> set[str]:
    """Start the stopped machines of the nodes of ``todo``, within the limits, cheapest first. No
    machine starts for a gang that cannot get all its nodes: it would end again with the refused
    job. Nor does one start for nodes that Slurm no longer waits for, or when it is too late. Return
    the nodes that need no other machine.
    """
    cloud = request.pool.cloud
    stopped = [m for m in site.ledger.stops.machines() if m.instance.cloud == cloud]
    nodes = {node for gang in todo for node in gang.nodes}
    # A machine that must leave by an order is ended soon. Its node gets a new one.
    leaving_ids = departing(stopped, site.ledger.directives.all(), site.now())
    machines_of_nodes = [
        m for m in stopped if m.instance.node in nodes and m.instance.id not in leaving_ids
    ]
    if not machines_of_nodes:
        return set()
    recipes = recipes_of(site, cloud, machines_of_nodes)
    fitting = to_start(machines_of_nodes, nodes, request.pool, recipes, site.now())
    startable = startables(fitting, offers)
    startable.sort(key=lambda s: (s.offer.price, s.machine.instance.node))
    if not startable:
        return set()
    # Outside of `spending`, in which the purchases of all clouds wait: each start is judged again.
    scope = site.scope(request.pool)
    whole = gangs_with_room(
        request, todo, startable, offers, scope, site.now(), site.config.ranking
    )
    served_nodes = set()
    for candidate in startable:
        # Each start may have taken a minute, if the cloud does not answer.
        awaited.look()
        if awaited.find_lateness():
            break
        node = candidate.machine.instance.node
        nodes = {node for gang in awaited.whole(whole) for node in gang.nodes} - awaited.up
        if node in nodes and _start(site, request, candidate, caps):
            served_nodes.add(node)
    return served_nodes


def _start(site: Site, request: NodeRequest, startable: Startable, caps: Caps) -> bool:
    """Start one machine. Return whether its node needs no other machine: it runs, or its start is
    in doubt.
    """
    intended = _intend(site, request, startable, caps)
    if intended is None:
        return False
    instance, jobs = intended.instance, [f"job:{job}" for job in intended.jobs]
    reach("start.after-intent")
    # Outside of `spending`: its lock must not be held during a call of the cloud.
    answer = _call(site, instance)
    if answer.error is None:
        reach("start.after-call")
        started = MachineStarted(
            machine=instance.id, instance_type=instance.instance_type, zone=instance.zone,
            price=instance.price,
        )  # fmt: skip
        log.info("started request=%s node=%s id=%s", request.id, instance.node, instance.id)
        site.record(request.id, "started", (instance.node, *jobs), started)
        if site.clouds[instance.cloud].node_address == "provider" and instance.address:
            assign_addresses(site, {instance.node: instance.address})
        reach("start.after-result")
    elif answer.error:
        refusal = StartRefused(machine=instance.id, error=answer.error)
        site.record(request.id, "start-refused", (instance.node, *jobs), refusal)
        if answer.stays:
            _keep_stopped(site, intended, startable.machine.instance.price, answer)
            return False
        _give_up(site, intended, startable.machine.instance.price, answer, request.id)
        return False
    return True


def _intend(site: Site, request: NodeRequest, startable: Startable, caps: Caps) -> Machine | None:
    """Decide whether the machine may start and record the intent. Return None if a limit or an
    exclusion prevents it.
    """
    machine, offer = startable.machine, startable.offer
    node = machine.instance.node
    node_request, node_gang = part_of(request, [node]), (Gang(nodes=(node,)),)
    reach("start.before-intent")
    with site.spending(request.pool) as scope:
        now = site.now()
        startable_offer, scope_of_start = startable.within(scope)
        decided = next_launch(
            node_request, node_gang, (), [startable_offer], scope_of_start, now,
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
            jobs=node_request.jobs,
            offer=offer,
            created=now,
            recipe=site.ledger.launches.recipes([machine.instance.generation]).get(
                machine.instance.generation, ""
            ),
        )
        return site.ledger.stops.record_start(
            row, machine, now, site.terms_of(row.pool)(machine.instance)
        )


class _Answer(NamedTuple):
    """The outcome of a start. ``error``: why the machine does not run. It is None if the machine
    runs, and "" if the result is unknown. ``ran``: whether the machine may have run before it
    disappeared. ``stays``: the machine is stopped as before, and nothing is wrong with it.
    """

    error: str | None
    ran: bool = False
    stays: bool = False


def _call(site: Site, instance: Instance, *, again: bool = False) -> _Answer:
    """Call the cloud to start the machine. ``again``: an earlier call may have taken effect."""
    provider = site.providers[instance.cloud]
    if not isinstance(provider, Stops):
        return _Answer("its cloud starts no stopped machines")
    in_doubt = again

    def start() -> None:
        nonlocal in_doubt
        try:
            provider.start(instance.id)
        except TransientError:
            in_doubt = True
            raise

    try:
        # A repair calls once, because the next round calls again.
        start() if again else call_with_retries(site, instance.cloud, start)
    except (CapacityError, QuotaError) as error:
        return _Answer(str(error))
    except InstanceNotFound as error:
        # A machine that started and was gone before we saw it is paid at the price of a running
        # one.
        return _Answer(str(error), ran=in_doubt)
    except ProviderError as error:
        # If an earlier call may have taken effect, the machine may run in spite of this error. Only
        # the errors above prove that it does not run.
        if not in_doubt:
            # A missing right or wrong credentials are repaired by a person. Until then the machine
            # and its disk must not go.
            return _Answer(str(error), stays=isinstance(error, AuthError))
        log.warning("start in doubt node=%s id=%s error=%s", instance.node, instance.id, error)
        return _Answer("")
    except Exception:
        log.exception("start failed in an unknown way node=%s id=%s", instance.node, instance.id)
        return _Answer("")
    return _Answer(None)


def _give_up(site: Site, machine: Machine, disk: float, answer: _Answer, correlation: str) -> None:
    """End a machine that cannot be started. ``disk``: the price of its disk ($/h), which it costs
    unless it may have run since the start was tried.
    """
    instance, cause = machine.instance, CannotBeStarted(error=answer.error or "")
    log.warning("start refused node=%s id=%s error=%s", instance.node, instance.id, answer.error)
    price = instance.price if answer.ran else disk
    site.ledger.stops.record_start_refusal(instance.cloud, instance.id, price, cause, site.now())
    terminate(site, instance.cloud, [machine], cause, correlation)


def _keep_stopped(site: Site, machine: Machine, disk: float, answer: _Answer) -> None:
    """Record that the machine is still stopped, at the price of its ``disk`` ($/h), which is also
    all that it has cost since the intent of the start.
    """
    instance, cause = machine.instance, CannotBeStarted(error=answer.error or "")
    log.warning("start denied node=%s id=%s error=%s", instance.node, instance.id, answer.error)
    now = site.now()
    with site.ledger.together():
        site.ledger.stops.record_never_ran(instance.cloud, instance.id, disk)
        site.ledger.stops.record_stopping(instance.cloud, [instance.id], cause, now)
        site.ledger.stops.record_stopped(instance.cloud, {instance.id: disk}, now)


# The actions of the repair.


def start_again(
    site: Site, snapshot: ClusterSnapshot, starts: Sequence[actions.StartAgain]
) -> None:
    """Repeat the start of these machines. A machine that cannot be started is ended, and its node
    gets another one. A machine that may not start now stays stopped, and its node is given back.
    """
    cloud = snapshot.terms.cloud
    if site.ledger.end_only:
        return
    cause_by_id = {a.machine: a.cause for a in starts}
    for machine in site.ledger.machines.live():
        instance = machine.instance
        if instance.cloud != cloud or instance.id not in cause_by_id or not machine.is_wanted:
            continue
        answer = _call_again(site, machine)
        kind, cause = "started", cause_by_id[instance.id]
        if answer.error is not None:
            kind = "start-refused"
            cause = RepetitionFailed(cause=cause, error=answer.error or "in doubt")
        site.record(CORRELATION, kind, (instance.node,), cause)
        pool = site.pool_of.get(instance.node)
        disk = pool.stopped_price if pool is not None else 0.0
        if answer.error and answer.stays:
            _keep_stopped(site, machine, disk, answer)
        elif answer.error:
            _give_up(site, machine, disk, answer, CORRELATION)


def _call_again(site: Site, machine: Machine) -> _Answer:
    """Repeat the start, unless it would be forbidden now. The cloud lists the machine as stopped,
    so it is recorded as stopped then.
    """
    row = site.ledger.launches.get(machine.instance.generation)
    stop = find_stop(site, row) if row is not None and row.pool in site.pools else None
    if stop is not None:
        return _Answer(str(stop), stays=True)
    return _call(site, machine.instance, again=True)


def runs_again(site: Site, snapshot: ClusterSnapshot, running: Sequence[actions.RunsAgain]) -> None:
    """Record that these machines run, so that they are paid as machines at work."""
    cause_by_id = {a.machine: a.cause for a in running}
    for instance in snapshot.listed or ():
        if instance.id in cause_by_id:
            site.ledger.stops.record_running(instance, site.now())
            site.record(CORRELATION, "runs-again", (instance.node,), cause_by_id[instance.id])


def end_stopped(site: Site, snapshot: ClusterSnapshot, ends: Sequence[actions.EndStopped]) -> None:
    """End these stopped machines, the intent first."""
    cloud = snapshot.terms.cloud
    machines = {m.instance.id: m for m in site.ledger.stops.machines() if m.instance.cloud == cloud}
    running_prices = {i.id: i.price for i in snapshot.listed or () if i.state in STANDING}
    for cause, alike in group_by(ends, lambda end: end.cause).items():
        doomed = [machines[a.machine] for a in alike if a.machine in machines]
        ids = [m.instance.id for m in doomed]
        # On the disk first, as for every end: the repair repeats an end without an answer.
        site.ledger.stops.record_ending_of_stopped(cloud, ids, cause, site.now(), running_prices)
        terminate(site, cloud, doomed, cause, CORRELATION)
