"""Tags machines with their owners (``tags``), if Slurm knows the owners of the jobs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Jobs, Owners

log = logging.getLogger(__name__)


def join(site: Site) -> Extensions | None:
    """Join if the configuration asks for tags with owners."""
    return (
        Extensions(find_owners=[partial(owners_of, site)]) if site.config.accounting.tags else None
    )


def owners_of(site: Site, nodes: Sequence[str], jobs: Jobs) -> Owners:
    """The owners of the jobs that wait for these nodes. Empty if Slurm does not answer, because
    they are only for tags.
    """
    node_set = frozenset(nodes)
    waiting_jobs = sorted(
        job for job, job_nodes in jobs.items() if not node_set.isdisjoint(job_nodes)
    )
    if not waiting_jobs:
        return {}
    try:
        return site.slurm.owners(waiting_jobs)
    except SlurmError as error:
        log.info("machines get no tags of their owner: %s", error)
        return {}
