"""Telling of machines that are paid and serve nobody, in the log and in ``status``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from slurm_elastic.controller.context import Site
from slurm_elastic.ledger import Health
from slurm_elastic.policies.leaked_instances import CODE, stray, unanswered, unending

log = logging.getLogger(__name__)

NAME = "paid machines"
"""The name under which the health of all machines is kept; no cloud's name, which has no space."""
TOLD = 5
"""So many are told one by one."""


class LeakedInstances:
    """Machines of a cloud that has left the configuration are never deleted, the others not at
    once, some clouds do not end what they are asked to, and what a cloud lists under an id that is
    none (``unusable``: by cloud and such an id, why) cannot be asked for; so somebody must be told.
    """

    def __init__(
        self, site: Site, unusable: Callable[[], Mapping[tuple[str, str], str]] = dict
    ) -> None:
        self._site = site
        self._unusable = unusable
        self._told: Mapping[tuple[str, str], str] | None = None

    def report(self) -> None:
        """Tell what has changed since the last time."""
        found = {**_found(self._site), **self._unusable()}
        if found == self._told:
            return
        for (cloud, id_), why in found.items():
            if (cloud, id_) not in (self._told or {}):
                log.error(
                    "machine is paid but not served cloud=%s id=%s reason=%s", cloud, id_, why
                )
        self._told = found
        self._site.ledger.report_health(_health_of(found, self._site.now()))


def _found(site: Site) -> dict[tuple[str, str], str]:
    """By cloud and machine (or generation of a launch that may have made some), why."""
    now, clouds = site.now(), site.providers
    machines = {
        (m.instance.cloud, m.instance.id): why
        for m in site.ledger.machines()
        if (why := stray(m.instance, clouds, site.pool_of) or unending(m.suspending, now))
    }
    launches = {
        (row.cloud, row.generation): why
        for row in site.ledger.open_launches()
        if (why := unanswered(row.cloud, len(row.nodes), clouds))
    }
    return machines | launches


def _health_of(strays: Mapping[tuple[str, str], str], now: float) -> Health:
    """The sentence of ``status`` about machines that are paid and serve nobody."""
    if not strays:
        return Health(name=NAME, checked=now)
    some = "; ".join(f"{id_}: {why}" for (_, id_), why in list(strays.items())[:TOLD])
    more = f"; and {len(strays) - TOLD} more" if len(strays) > TOLD else ""
    error = f"{len(strays)} serve nobody: {some}{more}"
    return Health(name=NAME, checked=now, error=error, code=CODE)
