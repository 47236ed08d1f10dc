"""Machines that are paid, serve nobody and are not ours to end, told in the log and ``status``.
Those that we end are orphans: ``policies/repair/reconcile_rules.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.units import does
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.ending import TERMINATE_FAILED
from slurm_elastic.controller.reconcile import Round
from slurm_elastic.policies.repair.strays import CODE, strays_of
from slurm_elastic.state.ledger import Health, LedgerState, Machine

log = logging.getLogger(__name__)


NAME = "paid machines"
"""The name under which the health of all machines is kept; no cloud's name, which has no space."""
TOLD = 5
"""So many are told one by one."""


class Strays:
    """Machines of a cloud that has left the configuration are never deleted, the others not at
    once, some clouds do not end what they are asked to, and what a cloud lists under an id that is
    none cannot be asked for; so somebody must be told.
    """

    def __init__(self, site: Site, rounds: Iterable[Round]) -> None:
        self._site = site
        self._readers = [one.reader for one in rounds]
        self._machines = ReportOnce[tuple[str, str]]()
        self._health = ReportOnce[str]()

    def report(self, state: LedgerState) -> None:
        """Tell what has changed since the last time."""
        site = self._site
        off = [m for m in state.stopped if m.instance.cloud not in site.providers]
        found = strays_of(
            (*state.machines, *off), state.launches, site.providers, site.pool_of, site.now()
        )
        for one in self._readers:
            found |= {(one.terms.cloud, id_): why for id_, why in one.unusable.items()}
        for machine in state.machines:
            key = machine.instance.cloud, machine.instance.id
            if key in found and machine.retired_at is not None and (no := self._refused(machine)):
                found[key] = f"{found[key]}; {no}"
        self._machines.forget_unless(found.__contains__)
        for (cloud, id_), why in found.items():
            if self._machines.is_news((cloud, id_)):
                log.error(
                    "machine is paid but not served cloud=%s id=%s reason=%s", cloud, id_, why
                )
        if self._health.is_news(NAME, frozenset(found.items())):
            site.ledger.health.report(health_of(found, site.now()))

    def _refused(self, machine: Machine) -> str:
        """The words with which its cloud would not end it; "" if it did not say so."""
        for made in reversed(self._site.ledger.decisions.about(machine.instance.node)):
            if made.kind == TERMINATE_FAILED:
                return made.reason
        return ""


def health_of(strays: Mapping[tuple[str, str], str], now: float) -> Health:
    """The sentence of ``status`` about machines that are paid and serve nobody."""
    if not strays:
        return Health(name=NAME, checked=now)
    some = "; ".join(f"{id_}: {why}" for (_, id_), why in list(strays.items())[:TOLD])
    more = f"; and {len(strays) - TOLD} more" if len(strays) > TOLD else ""
    error = f"{len(strays)} {does(len(strays), 'serve')} nobody: {some}{more}"
    return Health(name=NAME, checked=now, error=error, code=CODE)
