"""Keeps jobs off machines whose reservation ends before the jobs do.

Some reservations end their machines (EC2's capacity blocks). A request is split, so that jobs that
cannot end in time and cannot be saved get other machines. So do jobs for which machines start
ahead, by a growth policy (``growth_stays``) or for a migration. slurmctld may give a running
machine further jobs without asking us, so a reservation in Slurm takes its node from that time on:
slurmctld starts no job there whose time limit reaches into it. ckptman moves the jobs that are
there nevertheless (``policies.checkpoint.threat``).
"""

from __future__ import annotations

import contextlib
import logging
import math
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config.job_checkpoint import resolve_for
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.growth import growth_stays
from slurm_elastic.model.cluster import LaunchSpec, NodeRequest
from slurm_elastic.model.directive import Departure, kept_replacements
from slurm_elastic.model.reserved import Held
from slurm_elastic.model.slurm import Reservation, SlurmJob
from slurm_elastic.policies.launch.gang import part_of
from slurm_elastic.policies.launch.reservations import levelled, split_by_need

log = logging.getLogger(__name__)

PERIOD_S = 10.0
"""Seconds between two looks. A new machine takes longer to boot, so its node is in the reservation
before its first job ends.
"""
ROUNDED_S = 120.0
"""Seconds by which the end of a reservation in Slurm may differ from ours, because Slurm rounds
durations to minutes.
"""
CLEAN_UP_S = 86400.0
"""Seconds after the end of a reservation in which we still delete its reservation in Slurm."""
PREFIX = "slurm-elastic-"
"""The names of our reservations in Slurm begin with this."""


def join(site: Site) -> Extensions | None:
    """Join if a reservation of the site ends its machines, or did so before its entry was removed
    from the configuration.
    """
    ending = tuple(
        held
        for cloud in site.clouds.values()
        for held in cloud.held
        if held.machines_end_at is not None
    )
    if not ending:
        left = False
        with contextlib.suppress(sqlite3.Error):  # the next start cleans up
            left = bool(_without_entry(site))
        if not left:
            return None
        return Extensions(
            parts=[("reservations", lambda worker: ReservationEndsPart(site, (), worker))]
        )
    return Extensions(
        parts=[("reservations", lambda worker: ReservationEndsPart(site, ending, worker))],
        on_intent=[partial(reserve_ahead, site)],
        split_requests=[partial(split, site, ending)],
    )


def split(site: Site, ending: Sequence[Held], request: NodeRequest) -> Sequence[NodeRequest]:
    """Split a request by how long its machines must stay, if a reservation of its cloud that runs
    now ends its machines.
    """
    cloud, now = request.pool.cloud, site.now()
    ends = [
        held.machines_end_at
        for held in ending
        if held.cloud == cloud and held.is_active(now) and held.machines_end_at is not None
    ]
    if not ends:
        return (request,)
    boot_s = site.config.resume_timeout(site.clouds[cloud])
    job_needs, users = _needs_of_jobs(site, request), dict(request.job_nodes)
    # For a job that Slurm does not list assume the worst: no machine that ends too early.
    needs = dict.fromkeys(request.job_nodes, math.inf) | job_needs
    for number, (node, need) in enumerate(_needs_of_others(site, request).items(), 1):
        # slurmctld's job ids are positive, so each of these nodes may stand for a job of its own.
        needs[-number], users[-number] = need, (node,)
    needs = levelled(needs, ends, boot_s, now)
    request = replace(request, job_needs_s=job_needs)
    return tuple(
        replace(part_of(request, nodes), needs_s=need)
        for nodes, need in split_by_need(request.nodes, users, needs)
    )


def _needs_of_others(site: Site, request: NodeRequest) -> Mapping[str, float]:
    """Return by node without a known job for how long (s) its machine must stay, because a growth
    policy has started it for jobs that wait, or a migration for jobs that leave.
    """
    of_jobs = {node for nodes in request.job_nodes.values() for node in nodes}
    others = [node for node in request.nodes if node not in of_jobs]
    if not others:
        return {}
    needs = {**growth_stays.recorded(site, request), **_needs_of_replacements(site, others)}
    return {node: needs.get(node, 0.0) for node in others}


def _needs_of_replacements(site: Site, nodes: Collection[str]) -> Mapping[str, float]:
    """Return by node whose machine starts ahead of a migration for how long (s) the machine must
    stay: the longest time limit of the jobs on the machine whose place it takes. A job that is
    moved starts with its whole time limit.
    """
    orders = kept_replacements(site.ledger.directives.all(), site.now()).values()
    words = (order.word for order in orders if isinstance(order.word, Departure))
    instead_of = {
        machine.node: machine.instead_of
        for word in words
        for machine in (word.replacements.machines if word.replacements else ())
        if machine.node in nodes and not machine.is_over
    }
    if not instead_of:
        return {}
    jobs = _listed_jobs(site)
    if jobs is None:
        return dict.fromkeys(instead_of, math.inf)
    return {
        node: max((_limit_of(job) for job in jobs if leaving in job.nodes), default=0.0)
        for node, leaving in instead_of.items()
    }


def _needs_of_jobs(site: Site, request: NodeRequest) -> dict[int, float]:
    """Return by job for how long (s) its machines must stay: its time limit, or 0 if it can be
    saved. A job that Slurm does not list is absent.
    """
    jobs = (_listed_jobs(site) if request.job_nodes else None) or ()
    return {
        job.id: 0.0 if _is_savable(site, request, job) else _limit_of(job)
        for job in jobs
        if job.id in request.job_nodes
    }


def _listed_jobs(site: Site) -> Sequence[SlurmJob] | None:
    try:
        return site.slurm.jobs()
    except SlurmError as error:
        log.warning("time limits cannot be read, reservations that end are not used: %s", error)
        return None


def _limit_of(job: SlurmJob) -> float:
    return math.inf if job.limit is None else float(job.limit)


def _is_savable(site: Site, request: NodeRequest, job: SlurmJob) -> bool:
    config = site.config
    pool = next(p for p in config.pools if p.name == request.pool.name)
    return resolve_for(job, pool, config).method != "none"


class ReservationEndsPart(Part):
    """``task``: the periodic task that keeps the nodes of Slurm's reservations equal to the nodes
    of the machines.
    """

    def __init__(self, site: Site, ending: Sequence[Held], worker: Executor) -> None:
        self._site, self._ending = site, ending
        self._has_cleaned_up = False
        self.task = SiteTask(site, worker, self.look, "reservations", period=PERIOD_S)

    def look(self) -> None:
        """Compare Slurm's reservations with the machines, and change what differs. SlurmError
        passes; the next look tries again.
        """
        now = self._site.now()
        configured = [h for h in self._ending if h.begins_at <= now < h.ends_at + CLEAN_UP_S]
        without_entry = () if self._has_cleaned_up else _without_entry(self._site)
        keep(self._site, [*configured, *without_entry])
        # The cloud ends machines of a removed block at the same time as before, so no job may pass
        # that time.
        self._has_cleaned_up = not any(any(_nodes_on(self._site, h)) for h in without_entry)
        if self._has_cleaned_up and not self._ending:
            self.task.end()


def _without_entry(site: Site) -> Sequence[Held]:
    """The recorded reservations that end their machines and have no entry in the configuration."""
    configured = {_name_of(held) for cloud in site.clouds.values() for held in cloud.held}
    oldest_end_at = site.now() - CLEAN_UP_S
    # By name the latest: a name may have been that of several blocks, one after the other.
    latest = {_name_of(row.held): row.held for row in site.ledger.books.recorded_reservations()}
    return tuple(
        held
        for name, held in latest.items()
        if held.machines_end_at is not None
        and held.ends_at > oldest_end_at
        and name not in configured
    )


def reserve_ahead(site: Site, spec: LaunchSpec) -> None:
    """Keep the nodes of a launch free from the end of its reservation on. A growth policy starts
    nodes that have no job yet, and slurmctld may give them any job from now on.
    """
    held = spec.offer.held
    if held is None or held.machines_end_at is None:
        return
    try:
        keep(site, [held])
    except SlurmError as error:
        log.warning("nodes are not reserved in Slurm yet nodes=%s: %s", ",".join(spec.nodes), error)


def keep(site: Site, ending: Sequence[Held]) -> None:
    """Give the reservation in Slurm of each of ``ending`` the nodes of its machines. Delete the
    reservation in Slurm if no machine is left. If Slurm refuses a change, make the others and raise
    the first SlurmError.
    """
    if not ending:
        return
    now = site.now()
    reserved = {r.name: r for r in site.slurm.reservations() if r.name.startswith(PREFIX)}
    changes = []
    for held in ending:
        nodes = sorted(set(_nodes_on(site, held))) if now < held.ends_at else []
        changes.append((held, nodes, reserved.get(_name_of(held))))
    # A node may go over from one reservation to another. The reservation that loses the node comes
    # first, so that the other one may have it.
    changes.sort(key=lambda change: _has_new_nodes(change[1], change[2]))
    errors = []
    for held, nodes, present in changes:
        try:
            _keep_one(site, held, nodes, present)
        except SlurmError as error:
            if error.unanswered:
                raise
            errors.append(error)
    if errors:
        raise errors[0]


def _name_of(held: Held) -> str:
    """Return the name of the reservation in Slurm."""
    return f"{PREFIX}{held.cloud}-{held.name}"


def _has_new_nodes(nodes: Sequence[str], reserved: Reservation | None) -> bool:
    return not set(nodes) <= set(reserved.nodes if reserved else ())


def _keep_one(site: Site, held: Held, nodes: Sequence[str], reserved: Reservation | None) -> None:
    if nodes:
        _reserve(site, held, nodes, reserved)
    elif reserved is not None:
        log.info("no machine is on the reservation any longer name=%s", held.name)
        site.slurm.unreserve(reserved.name)


def _reserve(site: Site, held: Held, nodes: Sequence[str], reserved: Reservation | None) -> None:
    slurm, name = site.slurm, _name_of(held)
    # Slurm refuses a reservation that starts in the past.
    starts_at = max(held.machines_end_at or held.ends_at, site.now() + 1)
    if reserved is not None and abs(reserved.end - held.ends_at) > ROUNDED_S:
        # The configuration has another end now.
        slurm.unreserve(name)
        reserved = None
    if reserved is None:
        log.info("Slurm starts no job that passes the end of the reservation name=%s nodes=%s",
                 held.name, ",".join(nodes))  # fmt: skip
        slurm.reserve(name, nodes, starts_at, held.ends_at)
    elif set(reserved.nodes) != set(nodes):
        slurm.reserve_other_nodes(name, nodes)


def _nodes_on(site: Site, held: Held) -> Iterator[str]:
    """Yield the nodes whose machines are on the reservation, or may soon be."""
    state = site.ledger.state()
    for machine in state.machines:
        instance = machine.instance
        is_on_it = (instance.cloud, instance.reservation) == (held.cloud, held.name)
        if is_on_it and not machine.has_ended and instance.node:
            yield instance.node
    for launch in state.launches:
        if launch.offer.held is not None and launch.offer.held.key == held.key:
            yield from launch.nodes
