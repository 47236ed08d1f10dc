"""Machines are tagged with whose they are (``controller.books.tags``), where Slurm tells it."""

from __future__ import annotations

import logging
from functools import partial

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.steps import Steps
from slurm_elastic.model.cluster import NodeRequest

log = logging.getLogger(__name__)


def join(site: Site) -> Steps | None:
    """Where machines get such tags."""
    return Steps(asked=[partial(with_owners, site)]) if site.config.books.tags else None


def with_owners(site: Site, request: NodeRequest) -> NodeRequest:
    """For tags alone: none where Slurm does not tell."""
    if not request.jobs:
        return request
    try:
        return replace(request, owners=site.slurm.owners(sorted(request.jobs)))
    except SlurmError as error:
        log.info("machines get no tags of their owner: %s", error)
        return request
