"""An account for ``init --make``, and all that it could leave there, read by a hand of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
from providers.aws.bed import REGION, AwsBed

from slurm_elastic.cli.main import main
from slurm_elastic.config import configfile
from slurm_elastic.model.cluster import LaunchSpec, Market
from slurm_elastic.providers import open_provider
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.slurm.conf import plan
from slurm_elastic.testing.contract import UUID

Snapshot = frozenset[str]


def snapshot(ec2: Any, iam: Any) -> Snapshot:
    """One line for each resource and setting in EC2 and IAM."""
    lines: set[str] = set()
    for operation, key, name in (
        ("describe_vpcs", "Vpcs", "VpcId"),
        ("describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
        ("describe_route_tables", "RouteTables", "RouteTableId"),
        ("describe_subnets", "Subnets", "SubnetId"),
        ("describe_security_groups", "SecurityGroups", "GroupId"),
        ("describe_security_group_rules", "SecurityGroupRules", "SecurityGroupRuleId"),
        ("describe_key_pairs", "KeyPairs", "KeyName"),
        ("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
    ):
        records = getattr(ec2, operation)()[key]
        lines |= {f"{_kind(key)} {record[name]}" for record in records}
    for profile in iam.list_instance_profiles()["InstanceProfiles"]:
        roles = [role["RoleName"] for role in profile["Roles"]]
        lines.add(f"profile {profile['InstanceProfileName']} {roles}")
    for role in iam.list_roles()["Roles"]:
        name = role["RoleName"]
        policies = iam.list_role_policies(RoleName=name)["PolicyNames"]
        lines.add(f"role {name} {policies}")
    return frozenset(lines)


def _kind(key: str) -> str:
    return {"KeyPairs": "key pair"}.get(key, key)


SITE = """\
cluster: {{name: alps, uuid: {uuid}}}    # the site's own words stay
limits: {{dollars_per_hour: 5}}
allow: {{groups: [users]}}
join:
  head: 10.1.2.3
  network: {{kind: wireguard, endpoint: "192.0.2.7:51820", routes: [10.1.2.0/24], public_key: {place}/wg.pub}}
clouds:
  - name: aws
    provider: aws
    location: public
    region: us-east-1
    endpoint: {url}
    image: ami-12345678    # made by hand
    zones: [us-east-1a, us-east-1b]
    types: {{c5.large: {{cpus: 2, memory: 4G, price: 0.085}}}}
pools:
  - {{name: pub, cloud: aws, nodes: "pub[1-8]", cpus: 2, memory: 4G, instance_types: [c5.large]}}
"""


class Account:
    """An account without a network of its own, and a configuration that names none."""

    def __init__(self, control: Ec2Control, directory: Path) -> None:
        self.bed = AwsBed(control)
        self.control = control
        self.ec2 = self.bed.client
        self.iam = boto3.client("iam", region_name=REGION, endpoint_url=control.url)
        self.yaml = directory / "slurm-elastic.yaml"
        self.text = SITE.format(uuid=UUID, url=control.url, place=directory)
        self.yaml.write_text(self.text)
        (directory / "wg.pub").write_text("A" * 43 + "=\n")
        self.key = directory / "ssh_key"
        self.launches = 0
        self.clean()

    def clean(self) -> None:
        """A reset of the emulator empties EC2 alone."""
        for profile in self.iam.list_instance_profiles()["InstanceProfiles"]:
            name = profile["InstanceProfileName"]
            for role in profile["Roles"]:
                self.iam.remove_role_from_instance_profile(
                    InstanceProfileName=name, RoleName=role["RoleName"]
                )
            self.iam.delete_instance_profile(InstanceProfileName=name)
        for role in self.iam.list_roles()["Roles"]:
            name = role["RoleName"]
            for policy in self.iam.list_role_policies(RoleName=name)["PolicyNames"]:
                self.iam.delete_role_policy(RoleName=name, PolicyName=policy)
            self.iam.delete_role(RoleName=name)

    def init(self, *arguments: str) -> int:
        return main(["--config", str(self.yaml), "init", *arguments])

    def make(self, *arguments: str) -> int:
        return self.init("--make", "--cloud", "aws", "--yes", *arguments)

    def unmake(self, *arguments: str) -> int:
        return self.init("--unmake", "--cloud", "aws", "--yes", *arguments)

    def snapshot(self) -> Snapshot:
        return snapshot(self.ec2, self.iam)

    @property
    def cloud(self) -> Any:
        (cloud,) = configfile.load(self.yaml).clouds
        return cloud

    def launch(self, count: int = 2) -> Any:
        """A machine of the pool, as the daemon starts it."""
        config = configfile.load(self.yaml)
        pool = plan.pools_of(config)[0]
        provider = open_provider(config.clouds[0], config.cluster, config)
        offer = next(o for o in provider.offers(pool) if o.market is Market.ON_DEMAND)
        self.launches += 1
        generation, nodes = f"g{self.launches}", pool.nodes[:count]
        return provider.launch(
            LaunchSpec(generation=generation, pool=pool, nodes=nodes, offer=offer)
        )
