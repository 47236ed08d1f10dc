"""The site's own hosts, switched on for jobs and off after, by Redfish or a command."""

from __future__ import annotations

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.config.document import shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers.base.hosts.bmc_settings import is_bmc_url
from slurm_elastic.providers.base.later import later
from slurm_elastic.providers.redfish.settings import RedfishCloud
from slurm_elastic.providers.redfish.skeleton import SKELETON


def _open(settings: RedfishCloud, cluster: Cluster, config: Config | None) -> Provider:
    from slurm_elastic.providers.base.hosts.claims import claims_of
    from slurm_elastic.providers.base.hosts.switched import SwitchedHosts

    claims = claims_of(settings, settings.claims_file, config)
    if settings.command:
        from slurm_elastic.providers.base.hosts.power_command import PowerCommand

        return SwitchedHosts(settings, cluster, PowerCommand(settings), claims)
    from slurm_elastic.providers.base.hosts.bmc import redfish_of

    return SwitchedHosts(settings, cluster, redfish_of(settings), claims)


def _check(draft: Draft, i: int, cloud: RedfishCloud) -> None:
    """Report wrong URLs, nodes without a host, and hosts that two nodes have.

    Nothing else keeps such a host from being used for two nodes at once.
    """
    hosts_path = ("clouds", i, "hosts")
    for name, url in cloud.hosts.items():
        if not cloud.command and not is_bmc_url(url):
            expected = "a URL as https://bmc1/redfish/v1/Systems/1"
            draft.problems.add((*hosts_path, name), shown(url), expected)
    mates = [other for other in draft.clouds.values() if isinstance(other, RedfishCloud)]
    all_urls = [url for mate in mates for url in mate.hosts.values()]
    if any(all_urls.count(url) > 1 for url in cloud.hosts.values()):
        draft.problems.add(hosts_path, "a host that another node has, too", "one for each node")
    if not cloud.command and cloud.credentials_file is None:
        expected = "a JSON file with username and password"
        draft.problems.add(("clouds", i), "no 'credentials_file'", expected)
    for n, pool in draft.pools.items():
        missing = [name for name in draft.nodes.get(n, ()) if name not in cloud.hosts]
        if pool.cloud == cloud.name and missing:
            expected = f"nodes that clouds[{i}].hosts has"
            draft.problems.add(("pools", n, "nodes"), shown(missing[0]), expected)


CLOUD = CloudKind(
    settings=RedfishCloud, open=_open, check=_check, found=later(f"{__name__}.found:found"),
    skeleton=SKELETON,
)  # fmt: skip
