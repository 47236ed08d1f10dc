"""A project of OpenStack for ``init --make``."""

from __future__ import annotations

from pathlib import Path

from providers.openstack.bed import StackBed
from providers.openstack.stand_in import StandIn
from providers.openstack.stand_in_network import Neutron

from slurm_elastic.cli.main import main
from slurm_elastic.config import configfile
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.providers import open_provider
from slurm_elastic.slurm.conf import plan
from slurm_elastic.testing.contract import UUID

SITE = """\
cluster: {{name: alps, uuid: {uuid}}}    # the site's own words stay
limits: {{nodes: 8}}
join:
  head: 10.1.2.3
  network: {{kind: wireguard, endpoint: "192.0.2.7:51820", routes: [10.1.2.0/24], public_key: {place}/wg.pub}}
clouds:
  - name: stack
    provider: openstack
    location: on-premises
    cloud: hpc
    clouds_file: {file}
    image: worker    # made by hand
    types: {{small: {{cpus: 2, memory: 4G}}}}
pools:
  - {{name: os, cloud: stack, nodes: "os[1-8]", cpus: 2, memory: 4G, instance_types: [small], markets: [reserved]}}
"""


class Project:
    """A project with a network to the outside alone."""

    def __init__(self, stand_in: StandIn, directory: Path) -> None:
        self.bed = StackBed(stand_in, directory)
        self.stand_in = stand_in
        self.neutron = Neutron()
        self.bed.world.neutron = self.neutron
        self.yaml = directory / "slurm-elastic.yaml"
        self.text = SITE.format(uuid=UUID, file=self.bed.file, place=directory)
        (directory / "wg.pub").write_text("A" * 43 + "=\n")
        self.yaml.write_text(self.text)
        self.key = directory / "ssh_key"
        self.login = directory / "clouds-stack.yaml"

    def init(self, *arguments: str) -> int:
        return main(["--config", str(self.yaml), "init", *arguments])

    def make(self, *arguments: str) -> int:
        return self.init("--make", "--yes", *arguments)

    def unmake(self, *arguments: str) -> int:
        return self.init("--unmake", "--yes", *arguments)

    @property
    def cloud(self):
        (cloud,) = configfile.load(self.yaml).clouds
        return cloud

    @property
    def credentials(self):
        return [*self.bed.world.credentials.values()]

    def launch(self):
        config = configfile.load(self.yaml)
        pool = plan.pools_of(config)[0]
        provider = open_provider(config.clouds[0], config.cluster, config)
        offer = provider.offers(pool)[0]
        spec = LaunchSpec(generation="g1", pool=pool, nodes=pool.nodes[:1], offer=offer)
        return provider.launch(spec)
