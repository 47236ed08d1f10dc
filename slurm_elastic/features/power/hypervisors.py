"""Switches the site's own hosts of virtual machines off while they have no machine, and on again
when machines need room.

The launches of a cloud do not wait for a host. A host takes minutes to boot, so some free hosts
stay on (``keep``). When a machine starts on a free host, the next host is switched on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Executor

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.hypervisors import (
    HostNotSwitched,
    HostSwitchedOff,
    HostSwitchedOn,
)
from slurm_elastic.model.exclusion import CAPACITY
from slurm_elastic.model.hypervisor import SwitchesHosts
from slurm_elastic.policies.nodes.hypervisors import free_hosts, switches
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.state.audit_trail import pool_subject

log = logging.getLogger(__name__)

CORRELATION = "hypervisors"
PERIOD_S = 30.0


def join(site: Site) -> Extensions | None:
    """Join if a cloud allows us to switch its hosts."""
    providers = {
        name: provider
        for name, provider in site.providers.items()
        if isinstance(provider, SwitchesHosts) and provider.switch_rules is not None
    }
    if not providers:
        return None
    return Extensions(
        parts=[("hypervisors", lambda worker: HypervisorsPart(site, providers, worker))]
    )


class HypervisorsPart(Part):
    """``task``: the periodic task that the daemon runs. The times since when hosts are free are in
    memory only: after a restart each free host stays on for the whole time again.
    """

    def __init__(
        self, site: Site, providers: Mapping[str, SwitchesHosts], worker: Executor
    ) -> None:
        self._site, self._providers = site, providers
        self._free_since: dict[tuple[str, str], float] = {}
        self._failed = ReportOnce[tuple[str, str]]()
        self.task = SiteTask(site, worker, self.look, "hypervisors", period=PERIOD_S)

    def look(self) -> None:
        """Switch hosts of each cloud as the policy decides. One cloud does not stop another."""
        for cloud, provider in self._providers.items():
            try:
                self._serve(cloud, provider)
            except ProviderError as error:
                log.warning("hosts not checked cloud=%s error=%s", cloud, error)

    def _serve(self, cloud: str, provider: SwitchesHosts) -> None:
        site = self._site
        if site.ledger.end_only:
            return
        clock, views = site.monotonic(), provider.host_views()
        free = {(cloud, host) for host in free_hosts(views)}
        self._free_since = {
            key: since for key, since in self._free_since.items() if key[0] != cloud or key in free
        } | {key: self._free_since.get(key, clock) for key in free}
        free_since = {host: s for (name, host), s in self._free_since.items() if name == cloud}
        rules, is_needed = provider.switch_rules, self._is_needed(cloud)
        if rules is None:
            return
        plan = switches(views, free_since, clock, rules, is_needed=is_needed)
        for host in plan.on:
            on_cause = HostSwitchedOn(host=host, is_needed=is_needed, keep=rules.keep)
            self._switch(cloud, provider, host, on_cause, is_on=True)
        for host in plan.off:
            off_cause = HostSwitchedOff(host=host, empty_s=clock - free_since[host])
            self._switch(cloud, provider, host, off_cause, is_on=False)

    def _switch(
        self, cloud: str, provider: SwitchesHosts, host: str, cause: AnyCause, *, is_on: bool
    ) -> None:
        pools = tuple(pool_subject(pool.name) for pool in self._site.pools_of_cloud(cloud))
        try:
            done = provider.switch_host_on(host) if is_on else provider.switch_host_off(host)
        except ProviderError as error:
            if self._failed.is_news((cloud, host), str(error)):
                failure = HostNotSwitched(host=host, error=error.refusal)
                self._site.record(CORRELATION, "host-not-switched", pools, failure)
                log.warning("cloud=%s %s", cloud, failure)
            return
        self._failed.clear((cloud, host))
        if done:
            kind = "host-on" if is_on else "host-off"
            self._site.record(CORRELATION, kind, pools, cause)
            log.info("cloud=%s %s", cloud, cause)

    def _is_needed(self, cloud: str) -> bool:
        """Whether machines of this cloud wait for room, or are being launched."""
        site = self._site
        nodes = {node for pool in site.pools_of_cloud(cloud) for node in pool.nodes}
        state = site.ledger.state()
        if any(launch.cloud == cloud for launch in state.launches):
            return True
        lacks_room = (row.scope for row in state.exclusions if row.kind == CAPACITY)
        if not nodes.isdisjoint(lacks_room):
            return True
        served = site.served_nodes()
        return any(
            phase(node) is Phase.POWERING_UP and name not in served
            for name, node in site.slurm.nodes(sorted(nodes)).items()
        )
