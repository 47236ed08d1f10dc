"""Accounts and users whose budget is spent get no machine when slurmctld asks for one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Jobs
from slurm_elastic.controller.giving_back import power_down_and_requeue
from slurm_elastic.controller.launching.budget import find_barred_payers
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.composed import RequestsRefused
from slurm_elastic.model.causes.repairs import JobsLeftQueue
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.money.account_budgets import barring, payer, shares
from slurm_elastic.state.audit_trail import job_subject

log = logging.getLogger(__name__)


def join(site: Site) -> Extensions | None:
    """Join if accounts or users have budgets."""
    return (
        Extensions(filter_admitted=[partial(admit, site)])
        if site.config.policies.payer_budgets
        else None
    )


def admit(
    site: Site, cloud: str, correlation: str, nodes: Sequence[str], jobs: Jobs
) -> tuple[Sequence[str], Jobs]:
    """Return the nodes and jobs of a request that the budgets of accounts and users allow, and
    record in the ledger who pays for them. Nodes for which only jobs over such a budget wait are
    powered down again, and their jobs requeued. So are nodes of a public cloud whose jobs have all
    left the queue: nobody would pay for them, and the next job there would get them in spite of
    its budget.

    Reads Slurm's queue once. ``jobs``: by job id, the nodes that the job waited for when slurmctld
    made the request. The returned jobs are those of the queue now.
    """
    rows = site.slurm.jobs() if jobs else ()
    public = site.clouds[cloud].location is Location.PUBLIC
    if public and (deserted := _deserted(nodes, jobs, rows)):
        _refuse(site, deserted, (), JobsLeftQueue(), correlation)
        nodes = [node for node in nodes if node not in deserted]
    jobs = _present_jobs(nodes, jobs, rows)
    queue = {job.id: job for job in rows if job.id in jobs}
    overdrawn = find_barred_payers(site.config, site.ledger, site.now()) if public else {}
    bars = {id_: bar for id_, j in queue.items() if (bar := barring(overdrawn, j.account, j.user))}
    barred_jobs = set(bars)
    # If some machines of a job boot already, start the others, too: the job needs all of them.
    barred_jobs -= _find_booting_jobs(site, jobs) if barred_jobs else set()
    refused = _only_for(nodes, jobs, barred_jobs)
    if refused:
        refused_nodes = set(refused)
        refused_jobs = [job for job in barred_jobs if not refused_nodes.isdisjoint(jobs[job])]
        causes = tuple(dict.fromkeys(bars[job].cause for job in sorted(refused_jobs)))
        cause = causes[0] if len(causes) == 1 else RequestsRefused(causes=causes)
        _refuse(site, refused, refused_jobs, cause, correlation)
        nodes = [node for node in nodes if node not in refused_nodes]
        jobs = {job: nodes_of_job for job, nodes_of_job in jobs.items() if job not in refused_jobs}
    payers = {id_: payer(job.account, job.user) for id_, job in queue.items()}
    _record_payers(site, cloud, nodes, jobs, payers)
    return nodes, jobs


def _refuse(
    site: Site, nodes: Sequence[str], jobs: Iterable[int], cause: AnyCause, correlation: str
) -> None:
    """Power the nodes down again, and requeue the jobs that wait for them."""
    log.info("refused request=%s nodes=%s reason=%s", correlation, compress(nodes), cause)
    subjects = (*nodes, *(job_subject(job) for job in sorted(jobs)))
    site.record(correlation, "refused", subjects, cause)
    # No hurry: it would lift the requeue's hold, and Slurm would at once allocate other nodes of
    # the cloud to the job.
    power_down_and_requeue(site, nodes, site.slurm.nodes(nodes), cause, correlation, hurry=False)


def _deserted(nodes: Sequence[str], jobs: Jobs, rows: Iterable[SlurmJob]) -> list[str]:
    """Return the nodes whose jobs have all left the queue. slurmctld may have given a node that
    boots to another job since, whose machine it then is.
    """
    asked = {node for job_nodes in jobs.values() for node in job_nodes}
    used = {node for row in rows for node in (*row.nodes, *jobs.get(row.id, ()))}
    return [node for node in nodes if node in asked and node not in used]


def _present_jobs(nodes: Sequence[str], jobs: Jobs, rows: Sequence[SlurmJob]) -> Jobs:
    """Return by job the nodes that it has or waits for now.

    A request may wait for its turn or for a slow cloud for many minutes. If one of its jobs is
    cancelled, slurmctld gives the node to another job, whose payer may be over budget.
    """
    asked = set(nodes)
    present = {
        row.id: row.nodes
        for row in rows
        # The last job of a node may still show it while it completes, and pays for nothing new.
        if "COMPLETING" not in row.states and not asked.isdisjoint(row.nodes)
    }
    taken = {node for job_nodes in present.values() for node in job_nodes}
    waiting = {row.id for row in rows if not row.nodes}
    # Slurm shows no nodes of a requested job that is pending again. Its nodes are its own until
    # Slurm shows them at another job.
    for job, job_nodes in jobs.items():
        if job in waiting and (still_own := [n for n in job_nodes if n not in taken]):
            present[job] = tuple(still_own)
    return present


def _find_booting_jobs(site: Site, jobs: Jobs) -> set[int]:
    """Return the jobs for which at least one machine is being launched or boots."""
    state = site.ledger.state()
    booting = site.launching_nodes(state.launches)
    booting |= {m.instance.node for m in site.serving_machines(state.machines) if m.boots}
    return {job for job, waited_nodes in jobs.items() if not booting.isdisjoint(waited_nodes)}


def _only_for(nodes: Sequence[str], jobs: Jobs, barred_jobs: Iterable[int]) -> list[str]:
    """Return the nodes for which barred jobs wait, and no other job does."""
    barred_set = set(barred_jobs)
    nodes_of_barred = {node for job in barred_set for node in jobs[job]}
    nodes_of_allowed = {
        node for job, job_nodes in jobs.items() if job not in barred_set for node in job_nodes
    }
    return [node for node in nodes if node in nodes_of_barred and node not in nodes_of_allowed]


def _record_payers(
    site: Site, cloud: str, nodes: Sequence[str], jobs: Jobs, payer_of: Mapping[int, str]
) -> None:
    """Record in the ledger who pays for each node. No job waits for the other nodes: a growth
    policy started them and recorded their payers then, or they have none.
    """
    shares_by_node = {
        n: node_shares for n, node_shares in shares(nodes, jobs, payer_of).items() if node_shares
    }
    site.ledger.books.record_payers(shares_by_node, site.now())
    stale_before = site.now() - site.config.resume_timeout(site.clouds[cloud])
    site.ledger.books.delete_payers(
        [node for node in nodes if node not in shares_by_node], stale_before
    )
