"""Accounts and users whose budget is spent get no machine when slurmctld asks for one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from slurm_elastic.base.hostlist import compress
from slurm_elastic.controller.budget import find_barred_payers
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Jobs
from slurm_elastic.controller.giving_back import power_down_and_requeue
from slurm_elastic.model.causes.composed import RequestsRefused
from slurm_elastic.model.cluster import Location
from slurm_elastic.policies.money.account_budgets import barring, payer, shares
from slurm_elastic.state.audit_trail import job_subject

log = logging.getLogger(__name__)


def join(site: Site) -> Extensions | None:
    """Where accounts or users have budgets."""
    return (
        Extensions(filter_admitted=[partial(admit, site)])
        if site.config.policies.payer_budgets
        else None
    )


def admit(
    site: Site, cloud: str, correlation: str, nodes: Sequence[str], jobs: Jobs
) -> tuple[Sequence[str], Jobs]:
    """The part of a request that the budgets of accounts and users leave, and for which jobs; who
    pays it is written down. Nodes that only jobs over such a budget wait for go back to Slurm.

    Costs one reading of the queue.
    """
    queue = {job.id: job for job in site.slurm.jobs() if job.id in jobs} if jobs else {}
    public = site.clouds[cloud].location is Location.PUBLIC
    over = find_barred_payers(site.config, site.ledger, site.now()) if public else {}
    bars = {id_: bar for id_, j in queue.items() if (bar := barring(over, j.account, j.user))}
    bad = set(bars)
    # A job of which some machines boot gets the others, too: half of them are of no use.
    bad -= _begun(site, jobs) if bad else set()
    refused = _only_for(nodes, jobs, bad)
    if refused:
        gone = set(refused)
        lost = [job for job in bad if not gone.isdisjoint(jobs[job])]
        causes = tuple(dict.fromkeys(bars[job].cause for job in sorted(lost)))
        why = causes[0] if len(causes) == 1 else RequestsRefused(causes=causes)
        subjects = (*refused, *(job_subject(job) for job in sorted(lost)))
        log.info("refused request=%s nodes=%s reason=%s", correlation, compress(refused), why)
        site.record(correlation, "refused", subjects, why)
        # Its requeue hold stays: hurried, it would be given other nodes of the cloud at once.
        power_down_and_requeue(
            site, refused, site.slurm.nodes(refused), why, correlation, hurry=False
        )
        nodes = [node for node in nodes if node not in gone]
        jobs = {job: of for job, of in jobs.items() if job not in lost}
    payers = {id_: payer(job.account, job.user) for id_, job in queue.items()}
    _write_down(site, cloud, nodes, jobs, payers)
    return nodes, jobs


def _begun(site: Site, jobs: Jobs) -> set[int]:
    """Jobs for which machines boot already, while others wait for their turn."""
    state = site.ledger.state()
    booting = site.launching_nodes(state.launches)
    booting |= {m.instance.node for m in site.serving_machines(state.machines) if m.boots}
    return {job for job, of in jobs.items() if not booting.isdisjoint(of)}


def _only_for(nodes: Sequence[str], jobs: Jobs, bad: Iterable[int]) -> list[str]:
    wrong = set(bad)
    theirs = {node for job in wrong for node in jobs[job]}
    others = {node for job, of in jobs.items() if job not in wrong for node in of}
    return [node for node in nodes if node in theirs and node not in others]


def _write_down(
    site: Site, cloud: str, nodes: Sequence[str], jobs: Jobs, payer_of: Mapping[int, str]
) -> None:
    """Nodes that no job waits for were started ahead, for whom was said then; or for nobody."""
    known = {n: of for n, of in shares(nodes, jobs, payer_of).items() if of}
    site.ledger.books.want(known, site.now())
    stale = site.now() - site.config.resume_timeout(site.clouds[cloud])
    site.ledger.books.want_for_nobody([node for node in nodes if node not in known], stale)
