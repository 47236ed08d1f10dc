"""``iam render aws --for make`` grants each call of ``init --make`` and ``--unmake``, on resources
of ours alone; and no other action.

Which resources a call touches is of the Service Authorization Reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import botocore.client
import pytest
from providers.aws.judge import ACCOUNT, REGION, Ask, actions, granted
from providers.aws.making_account import Account

from slurm_elastic.config import Cluster
from slurm_elastic.config.grants import GrantUse, Holder
from slurm_elastic.providers.aws import CLOUD
from slurm_elastic.testing.contract import CLUSTER, UUID

PREFIXES = {
    "vpc": "vpc", "igw": "internet-gateway", "rtb": "route-table", "subnet": "subnet",
    "sg": "security-group", "sgr": "security-group-rule", "lt": "launch-template",
}  # fmt: skip
CREATED = {
    "CreateVpc": "vpc", "CreateInternetGateway": "internet-gateway",
    "CreateRouteTable": "route-table", "CreateSubnet": "subnet",
    "CreateSecurityGroup": "security-group", "ImportKeyPair": "key-pair",
    "CreateLaunchTemplate": "launch-template",
    "AuthorizeSecurityGroupEgress": "security-group-rule",
    "AuthorizeSecurityGroupIngress": "security-group-rule",
}  # fmt: skip


class Gate:
    """Puts each call before IAM's rules. A resource is ours if a call of ours created it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.policy: dict[str, Any] = {}
        self.used: set[str] = set()
        real = botocore.client.BaseClient._make_api_call

        def call(client: Any, operation: str, request: Any) -> Any:
            service = client.meta.service_model.service_name
            if self.policy and service in ("ec2", "iam"):
                for ask in asks(service, operation, request):
                    assert granted(self.policy, ask), ask
                    self.used.add(ask.action)
            return real(client, operation, request)

        monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)


def asks(service: str, operation: str, request: dict[str, Any]) -> Iterator[Ask]:
    action = f"{service}:{operation}"
    if service == "iam":
        name = request.get("InstanceProfileName") or request["RoleName"]
        kind = "instance-profile" if "InstanceProfile" in operation else "role"
        arn = f"arn:aws:iam::{ACCOUNT}"
        yield Ask(action, f"{arn}:{kind}/{name}")
        if "Tags" in request:
            yield Ask(
                f"iam:Tag{'InstanceProfile' if kind != 'role' else 'Role'}", f"{arn}:{kind}/{name}"
            )
        if operation == "AddRoleToInstanceProfile":
            yield Ask("iam:PassRole", f"{arn}:role/{request['RoleName']}")
        return
    if operation.startswith("Describe"):
        yield Ask(action, "*", {"aws:RequestedRegion": REGION})
        return
    ours = {"slurm-elastic:cluster": CLUSTER.uuid}
    for part in request.get("TagSpecifications", ()):
        assert part["ResourceType"] == CREATED[operation]
        arn = f"arn:aws:ec2:{REGION}:{ACCOUNT}:{CREATED[operation]}/new"
        tags = {tag["Key"]: tag["Value"] for tag in part["Tags"]}
        yield Ask(action, arn, {f"aws:RequestTag/{k}": v for k, v in tags.items()})
        yield Ask("ec2:CreateTags", arn, {"ec2:CreateAction": operation})
    text = json.dumps(request, default=str)
    for prefix, number in re.findall(r'"(vpc|igw|rtb|subnet|sgr|sg|lt)-([0-9a-f]{6,})"', text):
        arn = f"arn:aws:ec2:{REGION}:{ACCOUNT}:{PREFIXES[prefix]}/{prefix}-{number}"
        # IAM does not look at the gateway of a route.
        if (operation, prefix) != ("CreateRoute", "igw"):
            yield Ask(action, arn, {f"aws:ResourceTag/{k}": v for k, v in ours.items()})
    if operation == "DeleteKeyPair":
        arn = f"arn:aws:ec2:{REGION}:{ACCOUNT}:key-pair/{request['KeyName']}"
        yield Ask(action, arn, {f"aws:ResourceTag/{k}": v for k, v in ours.items()})


def test_all_calls_are_granted_and_nothing_else(
    account: Account,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = account.snapshot()
    gate = Gate(monkeypatch)
    cloud = account.cloud
    use = GrantUse(cluster=Cluster(name="alps", uuid=UUID), pools=())
    gate.policy = json.loads(CLOUD.grant(cloud, use, Holder.MAKE).text)
    text = account.text.replace("    zones: [us-east-1a, us-east-1b]\n", "")
    account.yaml.write_text(text)
    assert account.make() == 0
    # Without the tunnel there are rules of ingress, and the tunnel's is outdated.
    account.yaml.write_text(re.sub(r"  network: .*\n", "", account.yaml.read_text()))
    assert account.make() == 0
    account.yaml.write_text(account.yaml.read_text().replace("head: 10.1.2.3", "head: 10.1.2.4"))
    assert account.make() == 0
    assert account.unmake() == 0
    granted_actions = actions(gate.policy)
    assert gate.used <= granted_actions
    gate.policy = {}
    # The call has the association's id alone, so the gate does not see the resources.
    assert granted_actions - gate.used <= {"ec2:DisassociateRouteTable"}
    assert account.snapshot() == before


def test_another_clusters_resources_are_out_of_reach() -> None:
    settings = CLOUD.settings(name="aws", location="public", region=REGION, image="ami-1")
    use = GrantUse(cluster=CLUSTER, pools=())
    policy = json.loads(CLOUD.grant(settings, use, Holder.MAKE).text)
    theirs = {"aws:ResourceTag/slurm-elastic:cluster": "11111111-2222-3333-4444-555555555555"}
    for kind, action in (("vpc", "DeleteVpc"), ("security-group", "AuthorizeSecurityGroupIngress"),
                         ("subnet", "DeleteSubnet"), ("launch-template", "DeleteLaunchTemplate")):  # fmt: skip
        arn = f"arn:aws:ec2:{REGION}:{ACCOUNT}:{kind}/{kind}-1"
        assert not granted(policy, Ask(f"ec2:{action}", arn, theirs))
        assert not granted(policy, Ask(f"ec2:{action}", arn))
    for name in ("admin", "slurm-elastic-other-aws"):
        assert not granted(policy, Ask("iam:PutRolePolicy", f"arn:aws:iam::{ACCOUNT}:role/{name}"))
