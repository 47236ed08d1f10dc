"""The least rules of a security group for machines."""

from __future__ import annotations

import pytest

from slurm_elastic.config import Cluster
from slurm_elastic.config.grants import GrantUse
from slurm_elastic.config.site_place import SitePlace
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.machine_options import MachineOptions
from slurm_elastic.providers.base.site_rules import GROUP, rules_of

CLUSTER = Cluster(name="site", uuid="u")
TUNNEL = {"tunnel_port": 51820, "tunnel_networks": ("203.0.113.5/32",)}
ROUTED = {"head_networks": ("10.1.2.3/32",), "node_ports": (6818,)}


@pytest.mark.parametrize("network", [TUNNEL, {**TUNNEL, "head_opens": True}, ROUTED])
@pytest.mark.parametrize("rdma", [True, False])
def test_machines_with_rdma_reach_each_other_beside_any_tunnel(
    network: dict[str, object], rdma: bool
) -> None:
    """EFA needs all traffic of the group to and from itself."""
    machine = MachineOptions(rdma=rdma)
    pool = Pool(name="p", cloud="aws", nodes=("n",), cpus=1, real_memory=1, machine=machine)
    use = GrantUse(cluster=CLUSTER, pools=(pool,))
    place = SitePlace(cluster=CLUSTER, use=use, srun_ports=(60001, 63000), **network)  # type: ignore[arg-type]
    rules = rules_of(place)
    found = {rule.direction for rule in rules if rule.peer == GROUP and rule.ports is None}
    assert found == ({"ingress", "egress"} if rdma else set())
    assert len({rule.key for rule in rules}) == len(rules)
