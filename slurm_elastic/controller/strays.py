"""Reports machines that cost money, serve no node and are not ours to end, in the log and in
``status``. Machines that we end are orphans: ``policies/repair/reconcile_rules.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.units import does
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.ending import TERMINATE_FAILED
from slurm_elastic.controller.reconcile import Round
from slurm_elastic.policies.repair.strays import code_of, strays_of
from slurm_elastic.state.ledger import Health, LedgerState, Machine

log = logging.getLogger(__name__)


NAME = "paid machines"
"""The name of this row of health. It contains a space, so it is never the name of a cloud."""
MAX_REPORTED = 5
"""Machines that ``status`` names one by one."""


class Strays:
    """Reports the machines that only a person can end, or that take long to end: machines of a
    cloud that has left the configuration, machines that their cloud does not end although we asked
    for it, and machines that a cloud lists under an unusable id.
    """

    def __init__(self, site: Site, rounds: Iterable[Round]) -> None:
        self._site = site
        self._readers = [round_.reader for round_ in rounds]
        self._machines = ReportOnce[tuple[str, str]]()
        self._health = ReportOnce[str]()

    def report(self, state: LedgerState) -> None:
        """Report the machines that are new since the last call, and the changed ``status``."""
        site = self._site
        stopped_without_cloud = [m for m in state.stopped if m.instance.cloud not in site.providers]
        reason_by_machine = strays_of(
            (*state.machines, *stopped_without_cloud),
            state.launches,
            site.providers,
            site.pool_of,
            site.now(),
        )
        for round_ in self._readers:
            reason_by_machine |= {
                (round_.terms.cloud, id_): reason for id_, reason in round_.unusable.items()
            }
        for machine in state.machines:
            key = machine.instance.cloud, machine.instance.id
            if (
                key in reason_by_machine
                and machine.retired_at is not None
                and (no := self._refused(machine))
            ):
                reason_by_machine[key] = f"{reason_by_machine[key]}; {no}"
        self._machines.forget_unless(reason_by_machine.__contains__)
        for (cloud, id_), reason in reason_by_machine.items():
            if self._machines.is_news((cloud, id_)):
                log.error(
                    "machine is paid but not served cloud=%s id=%s reason=%s", cloud, id_, reason
                )
        if self._health.is_news(NAME, frozenset(reason_by_machine.items())):
            site.ledger.health.report(make_health(reason_by_machine, site.now()))

    def _refused(self, machine: Machine) -> str:
        """Return the error with which the cloud did not end the machine; "" if there was none."""
        for decision in reversed(self._site.ledger.decisions.about(machine.instance.node)):
            if decision.kind == TERMINATE_FAILED:
                return str(decision.cause)
        return ""


def make_health(strays: Mapping[tuple[str, str], str], now: float) -> Health:
    """Return the row of ``status`` about machines that cost money and serve no node."""
    if not strays:
        return Health(name=NAME, checked=now)
    listed = "; ".join(
        f"{id_}: {reason}" for (_, id_), reason in list(strays.items())[:MAX_REPORTED]
    )
    and_more = f"; and {len(strays) - MAX_REPORTED} more" if len(strays) > MAX_REPORTED else ""
    error = f"{len(strays)} {does(len(strays), 'serve')} no node: {listed}{and_more}"
    return Health(name=NAME, checked=now, error=error, code=code_of(len(strays)))
