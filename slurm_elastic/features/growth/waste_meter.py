"""Measures the waste of machines for growth policies with ``waste=auto``."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from slurm_elastic.controller.context import Site
from slurm_elastic.policies.growth.scaling import GroupSnapshot
from slurm_elastic.policies.growth.waste import MeasuredWaste, asks_waste, measured, with_waste
from slurm_elastic.state.audit_trail import pool_subject

log = logging.getLogger(__name__)

KIND = "waste"
MEASURE_EVERY_S = 600.0
HISTORY_S = 14 * 86400.0
NEWS_SHARE = 0.1
"""The share by which the waste must change before we record the change."""


class WasteMeter:
    """Keeps the last measurement of each group of pools."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._wastes: dict[str, tuple[float, MeasuredWaste]] = {}
        self._recorded: dict[str, int] = {}

    def resolved(self, group: str, now: GroupSnapshot) -> GroupSnapshot:
        """Return the snapshot with the measured waste in its growth policy."""
        if not asks_waste(now.growth):
            return now
        waste = self._waste(group, [pool.name for pool in now.pools], now.now)
        return replace(now, growth=with_waste(now.growth, waste.seconds))

    def _waste(self, group: str, pools: Sequence[str], now: float) -> MeasuredWaste:
        measured_at, waste = self._wastes.get(group, (float("-inf"), None))
        if waste is not None and 0 <= now - measured_at < MEASURE_EVERY_S:
            return waste
        machines = self._site.ledger.machines.live(ended_since=now - HISTORY_S)
        boot_s = self._site.rules[pools[0]].boot
        waste = measured((machine for machine in machines if machine.pool in pools), boot_s)
        self._wastes[group] = now, waste
        self._record(group, pools, waste)
        return waste

    def _record(self, group: str, pools: Sequence[str], waste: MeasuredWaste) -> None:
        """Record a new or changed waste for ``explain``."""
        recorded = self._recorded.get(group)
        if recorded is not None and abs(waste.seconds - recorded) < NEWS_SHARE * recorded:
            return
        self._recorded[group] = waste.seconds
        self._site.record(KIND, KIND, [pool_subject(pool) for pool in pools], waste.cause)
        log.info("waste group=%s %s", group, waste.cause)
