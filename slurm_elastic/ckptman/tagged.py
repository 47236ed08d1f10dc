"""The machines by their tags alone, for a service that was started without a ledger to read."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from slurm_elastic.ckptman.context import Site
from slurm_elastic.ledger import Machine
from slurm_elastic.policies.sound import sound

log = logging.getLogger(__name__)

EVERY = 30.0
"""Seconds between two readings of all clouds."""


class Tagged:
    """Only a machine's node, state and address are known then."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._found: dict[str, Machine] = {}
        self._next = float("-inf")

    def machines(self) -> Mapping[str, Machine]:
        """By id; a cloud that cannot be read has those of before."""
        site = self._site
        if site.monotonic() < self._next:
            return self._found
        self._next = site.monotonic() + EVERY
        for name, provider in site.providers.items():
            try:
                listed = sound(provider.instances(), lambda _: 0.0, site.now()).machines
            except Exception as error:  # noqa: BLE001 - whatever it raises, it is no list
                log.warning("cloud cannot be read cloud=%s error=%s", name, error)
                continue
            others = {i: m for i, m in self._found.items() if m.instance.cloud != name}
            mine = {
                one.id: Machine(
                    instance=one,
                    pool=pool.name if (pool := site.pool_of.get(one.node)) else "",
                    last_seen=site.now(),
                )
                for one in listed
            }
            self._found = others | mine
        return self._found
