"""Machines are tagged with whose they are (``books.tags``), where Slurm tells it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Jobs, Owners

log = logging.getLogger(__name__)


def join(site: Site) -> Extensions | None:
    """Where machines get such tags."""
    return Extensions(find_owners=[partial(owners_of, site)]) if site.config.books.tags else None


def owners_of(site: Site, nodes: Sequence[str], jobs: Jobs) -> Owners:
    """Of the jobs that want these nodes. For tags alone: none where Slurm does not tell."""
    wanted = frozenset(nodes)
    theirs = sorted(job for job, of in jobs.items() if not wanted.isdisjoint(of))
    if not theirs:
        return {}
    try:
        return site.slurm.owners(theirs)
    except SlurmError as error:
        log.info("machines get no tags of their owner: %s", error)
        return {}
