"""The door that a cloud's machines come in by: what makes no sense stays outside, and is told once
(policies.sound).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.controller.context import Site
from slurm_elastic.model import Instance
from slurm_elastic.policies.sound import sound
from slurm_elastic.providers.base.tags import price_of

log = logging.getLogger(__name__)


def listed_price(cloud: CloudSettings, instance_type: str) -> float:
    """The price of a machine by the configuration ($/h)."""
    if cloud.flat_price is not None:
        return cloud.flat_price
    return price_of(None, instance_type, cloud.shapes)


class Believed:
    """One cloud's. ``unusable`` are the machines of its last list that cannot be kept, with why."""

    def __init__(self, site: Site, cloud: str) -> None:
        self._site = site
        self._cloud = cloud
        self._told: Mapping[str, str] = {}
        self.unusable: Mapping[str, str] = {}
        self.doubts: Mapping[str, str] = {}

    def take(self, listed: Iterable[Instance]) -> tuple[Instance, ...]:
        """The machines of a complete list, as they may be kept."""
        settings = self._site.config.cloud(self._cloud)
        found = sound(
            listed, lambda one: listed_price(settings, one.instance_type), self._site.now()
        )
        for id_, why in found.doubts.items():
            if self._told.get(id_) != why:
                log.warning(
                    "tags not believed, put them right or end the machine cloud=%s id=%s reason=%s",
                    self._cloud, id_, why,
                )  # fmt: skip
        self._told = self.doubts = found.doubts
        self.unusable = found.unusable
        return found.machines
