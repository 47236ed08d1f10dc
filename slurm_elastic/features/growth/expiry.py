"""Checks regularly when the clouds' credentials expire, and records it in the ledger, from which
``status`` and notifications read it.
"""

from __future__ import annotations

import logging
from concurrent.futures import Executor

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.model.protocols import Expiring
from slurm_elastic.state.credentials import health_of

log = logging.getLogger(__name__)

PERIOD_S = 600.0


def join(site: Site) -> Extensions:
    """Join at every site: each may have credentials that expire."""
    return Extensions(parts=[("credentials", lambda worker: CredentialsEnd(site, worker))])


class CredentialsEnd(Part):
    """``task``: the periodic task that the daemon runs."""

    def __init__(self, site: Site, worker: Executor) -> None:
        self._site = site
        self.task = SiteTask(
            site, worker, self.look, "credentials", period=PERIOD_S, only_looks=True
        )

    def look(self) -> None:
        """Ask each provider that knows when its credentials expire. If a cloud does not answer, its
        last recorded answer is kept.
        """
        site = self._site
        for name, provider in site.providers.items():
            if not isinstance(provider, Expiring):
                continue
            try:
                ends = provider.credentials_end()
            except ProviderError as error:
                log.info("credentials' end is not known cloud=%s error=%s", name, error)
                continue
            except Exception:
                log.exception("credentials' end is not known cloud=%s", name)
                continue
            is_recorded = any(
                h.name == health_of(name, ends, 0.0).name for h in site.ledger.health.all()
            )
            if is_recorded or ends is not None:
                site.ledger.health.report(health_of(name, ends, site.now()))
