"""``init --terraform`` declares for EC2 what ``init --make`` makes on the emulated one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import terraform_files
from providers.aws.making_account import Account

Blocks = terraform_files.Blocks
OF_TERRAFORM = ("tags", "update_default_version")
"""Arguments without a counterpart: tags differ, so that --unmake leaves Terraform's alone."""


class Made:
    """The same blocks, from what the emulator has; read by a hand of its own."""

    def __init__(self, account: Account) -> None:
        self.ec2, self.iam = account.ec2, account.iam
        self.label: dict[str, str] = {}
        self.blocks: Blocks = {}
        self.network()
        self.group()
        self.rest()
        self.role()

    def ours(self, operation: str, key: str) -> list[tuple[str, Any]]:
        filters = [{"Name": "tag:slurm-elastic:made-by", "Values": ["slurm-elastic init"]}]
        records = getattr(self.ec2, operation)(Filters=filters)[key]
        return [(_label(record["Tags"]), record) for record in records]

    def named(self, kind: str, label: str, id_: str) -> None:
        self.label[id_] = f"${{{kind}.{label}.id}}"

    def network(self) -> None:
        for label, vpc in self.ours("describe_vpcs", "Vpcs"):
            self.named("aws_vpc", label, vpc["VpcId"])
            self.blocks["aws_vpc", label] = {"cidr_block": vpc["CidrBlock"]}
        for label, gateway in self.ours("describe_internet_gateways", "InternetGateways"):
            self.named("aws_internet_gateway", label, gateway["InternetGatewayId"])
            self.blocks["aws_internet_gateway", label] = {}
            (attached,) = gateway["Attachments"]
            self.blocks["aws_internet_gateway_attachment", "gateway_attachment"] = {
                "internet_gateway_id": self.label[gateway["InternetGatewayId"]],
                "vpc_id": self.label[attached["VpcId"]],
            }
        for label, subnet in self.ours("describe_subnets", "Subnets"):
            self.named("aws_subnet", label, subnet["SubnetId"])
            self.blocks["aws_subnet", label] = {
                "vpc_id": self.label[subnet["VpcId"]], "cidr_block": subnet["CidrBlock"],
                "availability_zone": subnet["AvailabilityZone"],
                "map_public_ip_on_launch": subnet["MapPublicIpOnLaunch"],
            }  # fmt: skip
        for label, table in self.ours("describe_route_tables", "RouteTables"):
            self.routes(label, table)

    def routes(self, label: str, table: Any) -> None:
        self.named("aws_route_table", label, table["RouteTableId"])
        self.blocks["aws_route_table", label] = {"vpc_id": self.label[table["VpcId"]]}
        own = self.label[table["RouteTableId"]]
        (route,) = [r for r in table["Routes"] if r["GatewayId"] != "local"]
        self.blocks["aws_route", "default_route"] = {
            "route_table_id": own, "destination_cidr_block": route["DestinationCidrBlock"],
            "gateway_id": self.label[route["GatewayId"]],
        }  # fmt: skip
        for association in table["Associations"]:
            subnet = self.label[association["SubnetId"]]
            zone = subnet.split("subnet_")[-1].split(".")[0]
            self.blocks["aws_route_table_association", f"association_{zone}"] = {
                "route_table_id": own, "subnet_id": subnet
            }  # fmt: skip

    def group(self) -> None:
        for label, group in self.ours("describe_security_groups", "SecurityGroups"):
            self.named("aws_security_group", label, group["GroupId"])
            self.blocks["aws_security_group", label] = {
                "name": group["GroupName"], "description": group["Description"],
                "vpc_id": self.label[group["VpcId"]],
            }  # fmt: skip
            # All rules, ours or not: Terraform's group has no others.
            filters = [{"Name": "group-id", "Values": [group["GroupId"]]}]
            rules = self.ec2.describe_security_group_rules(Filters=filters)["SecurityGroupRules"]
            for rule in rules:
                way = "egress" if rule["IsEgress"] else "ingress"
                kind = f"aws_vpc_security_group_{way}_rule"
                self.blocks[kind, _label(rule["Tags"])] = self.rule(rule)

    def rule(self, rule: Any) -> dict[str, Any]:
        block = {
            "security_group_id": self.label[rule["GroupId"]], "ip_protocol": rule["IpProtocol"],
        }  # fmt: skip
        if rule["IpProtocol"] != "-1":
            block |= {"from_port": rule["FromPort"], "to_port": rule["ToPort"]}
        if "CidrIpv4" in rule:
            peer = {"cidr_ipv4": rule["CidrIpv4"], "description": rule["Description"]}
            return block | peer
        other = self.label[rule["ReferencedGroupInfo"]["GroupId"]]
        return block | {"referenced_security_group_id": other}

    def rest(self) -> None:
        (pair,) = self.ec2.describe_key_pairs(IncludePublicKey=True)["KeyPairs"]
        self.blocks["aws_key_pair", "key_pair"] = {
            "key_name": pair["KeyName"], "public_key": pair["PublicKey"].strip()
        }  # fmt: skip
        (template,) = self.ec2.describe_launch_templates()["LaunchTemplates"]
        id_ = template["LaunchTemplateId"]
        self.named("aws_launch_template", "launch_template", id_)
        (version,) = self.ec2.describe_launch_template_versions(LaunchTemplateId=id_)[
            "LaunchTemplateVersions"
        ]
        data = version["LaunchTemplateData"]
        options = data["MetadataOptions"]
        self.blocks["aws_launch_template", "launch_template"] = {
            "name": template["LaunchTemplateName"],
            "instance_initiated_shutdown_behavior": data["InstanceInitiatedShutdownBehavior"],
            "metadata_options": [{
                "http_endpoint": options["HttpEndpoint"], "http_tokens": options["HttpTokens"],
                "http_put_response_hop_limit": options["HttpPutResponseHopLimit"],
            }],
        }  # fmt: skip

    def role(self) -> None:
        (role,) = self.iam.list_roles()["Roles"]
        name = role["RoleName"]
        trust = json.dumps(role["AssumeRolePolicyDocument"]).replace(
            role["Arn"].split(":")[4], "${data.aws_caller_identity.current.account_id}"
        )
        description = self.iam.get_role(RoleName=name)["Role"]["Description"]
        self.blocks["aws_iam_role", "role"] = {
            "name": name, "description": description, "assume_role_policy": json.loads(trust)
        }  # fmt: skip
        (policy,) = self.iam.list_role_policies(RoleName=name)["PolicyNames"]
        rights = json.dumps(
            self.iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]
        )
        for id_, reference in self.label.items():
            rights = rights.replace(id_, reference)
        self.blocks["aws_iam_role_policy", "role_policy"] = {
            "name": "slurm-elastic-services", "role": "${aws_iam_role.role.id}",
            "policy": json.loads(rights),
        }  # fmt: skip
        (profile,) = self.iam.list_instance_profiles()["InstanceProfiles"]
        (of_profile,) = profile["Roles"]
        assert of_profile["RoleName"] == name
        self.blocks["aws_iam_instance_profile", "instance_profile"] = {
            "name": profile["InstanceProfileName"], "role": "${aws_iam_role.role.id}"
        }  # fmt: skip


def _label(tags: Any) -> str:
    (part,) = [tag["Value"] for tag in tags if tag["Key"] == "slurm-elastic:part"]
    return part.replace("-", "_").replace(".", "_")


def document_of(expression: Any) -> Any:
    """The document in jsonencode(...), as far as ours go: objects, lists and strings."""
    text = expression.removeprefix("${jsonencode(").removesuffix(")}")
    return eval(_json(text), {"__builtins__": {}})


def _json(text: str) -> str:
    """HCL's objects as Python's."""
    text = re.sub(r'("[^"]*"|\b[A-Za-z]\w*)\s*=\s(?!=)', lambda m: f"{_key(m[1])}: ", text)
    lines = [
        line if line.rstrip().endswith(("{", "[", ",")) else line + "," for line in text.split("\n")
    ]
    return "\n".join(lines).rstrip().rstrip(",")


def _key(text: str) -> str:
    return text if text.startswith('"') else f'"{text}"'


@pytest.mark.parametrize("join", ["tunnel", "routes"])
def test_files_declare_what_make_makes(account: Account, tmp_path: Path, join: str) -> None:
    if join == "routes":
        start, end = account.text.index("  network:"), account.text.index("clouds:")
        account.yaml.write_text(account.text[:start] + account.text[end:])
    assert account.make() == 0
    made = Made(account).blocks
    directory = tmp_path / "files"
    plain = account.yaml.read_text()
    for key in ("subnets", "security_groups", "key_name", "launch_template"):
        plain = "\n".join(line for line in plain.split("\n") if f"    {key}:" not in line)
    account.yaml.write_text(plain)
    assert account.init("--terraform", str(directory)) == 0
    blocks = terraform_files.judge(directory)
    declared = {
        place: {
            key: terraform_files.with_defaults(value, blocks)
            for key, value in attributes.items()
            if key not in OF_TERRAFORM
        }
        for place, attributes in blocks["resource"].items()
    }
    for attributes in declared.values():
        for key in ("policy", "assume_role_policy"):
            if key in attributes:
                attributes[key] = document_of(attributes[key])
    assert declared == made


def test_files_hold_no_secret_and_say_how_they_are_used(account: Account, tmp_path: Path) -> None:
    assert account.make() == 0
    secret = account.key.read_text().splitlines()[1]
    assert account.init("--terraform", str(tmp_path / "files")) == 0
    text = "".join(file.read_text() for file in (tmp_path / "files").iterdir())
    assert secret not in text
    assert "terraform init && terraform apply" in text


def test_rights_may_look_like_expressions(account: Account, tmp_path: Path) -> None:
    """IAM's own variables are no expressions of Terraform."""
    pool = '{name: pub, cloud: aws, nodes: "pub[1-8]", '
    account.yaml.write_text(account.text.replace(pool, pool + "image: {os: debian}, "))
    assert account.init("--terraform", str(tmp_path / "files"), "--dry-run") == 0
    assert not (tmp_path / "files").exists()
    assert account.init("--terraform", str(tmp_path / "files")) == 0
    assert '"$${aws:PrincipalAccount}"' in (tmp_path / "files" / "main.tf").read_text()
    terraform_files.judge(tmp_path / "files")
