"""``init --make`` and ``--unmake`` on the emulated EC2: a site without a network becomes one with
machines, at any crash, and the account is as before afterwards.
"""

from __future__ import annotations

import json
import re
import stat
import sys
from typing import Any

import pytest
import terraform_page
import yaml
from providers.aws.making_account import Account

from slurm_elastic.model.finding import Finding
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.setup.making.plan import GROUPS
from slurm_elastic.watch.doctor import outdated


def test_from_an_empty_account_to_a_machine_and_back(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    before = account.snapshot()
    assert account.make() == 0
    out = capsys.readouterr().out
    assert "created vpc vpc-" in out
    cloud = account.cloud
    assert set(cloud.subnets) == {"us-east-1a", "us-east-1b"}
    text = account.yaml.read_text()
    assert "# the site's own words stay" in text
    assert "# made by hand" in text

    machines = account.launch()
    machine = machines[0]
    record = account.ec2.describe_instances(InstanceIds=[machine.id])["Reservations"][0]
    (instance,) = record["Instances"]
    assert instance["SubnetId"] == cloud.subnets[instance["Placement"]["AvailabilityZone"]]
    assert [g["GroupId"] for g in instance["SecurityGroups"]] == list(cloud.security_groups)
    assert instance["KeyName"] == cloud.key_name == "slurm-elastic-alps-aws"
    assert cloud.launch_template.startswith("lt-")
    (group,) = account.ec2.describe_security_groups(GroupIds=list(cloud.security_groups))[
        "SecurityGroups"
    ]
    assert group["IpPermissions"] == []
    (rule,) = group["IpPermissionsEgress"]
    assert (rule["IpProtocol"], rule["FromPort"], rule["IpRanges"][0]["CidrIp"]) == (
        "udp", 51820, "192.0.2.7/32",
    )  # fmt: skip

    assert account.unmake() == 0
    out = capsys.readouterr().out
    assert "in use by i-" in out, out
    assert account.cloud.subnets == cloud.subnets  # a running machine keeps all of its network
    account.ec2.terminate_instances(InstanceIds=[m.id for m in machines])

    assert account.unmake() == 0
    assert account.snapshot() == before
    assert account.yaml.read_text() == account.text
    assert not account.key.exists()


@pytest.mark.parametrize(
    ("parts", "kinds"),
    [
        (("key-pair",), {"key pair"}),
        (("security-group",), {"SecurityGroups", "SecurityGroupRules", "Vpcs", "Subnets"}),
        # Its rights name them, and could not be compared with those that init gave it otherwise.
        (("role", "launch-template"), {"role", "profile", "SecurityGroups", "LaunchTemplates"}),
    ],
)
def test_a_removal_leaves_the_parts_that_are_left_out_and_what_they_need(
    account: Account, parts: tuple[str, ...], kinds: set[str]
) -> None:
    before = account.snapshot()
    assert account.make() == 0
    made = account.snapshot() - before
    assert account.unmake(*(word for part in parts for word in ("--without", part))) == 0
    rest = account.snapshot() - before
    assert {line for line in made if line.startswith(tuple(kinds))} <= rest
    assert ("launch-template" in parts) is any(line.startswith("LaunchTemplates") for line in rest)
    assert ("role" in parts) is any(line.startswith("role ") for line in rest)
    assert (parts == ("key-pair",)) is not any(line.startswith("Vpcs") for line in rest)
    assert account.key.exists() is any(line.startswith("key pair") for line in rest)
    assert account.unmake() == 0
    assert account.snapshot() == before


def test_each_kind_that_is_made_is_of_a_group(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else `--unmake --without` would remove it."""
    assert account.init("--make", "--dry-run", "--json") == 0
    made = {resource["kind"] for resource in json.loads(capsys.readouterr().out)["resources"]}
    assert made <= {kind for kinds in GROUPS.values() for kind in kinds}


def test_in_a_network_with_ipv6_the_group_lets_nothing_out_by_ipv6(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    vpc = account.ec2.create_vpc(CidrBlock="10.60.0.0/16", AmazonProvidedIpv6CidrBlock=True)
    subnet = account.ec2.create_subnet(
        VpcId=vpc["Vpc"]["VpcId"], CidrBlock="10.60.1.0/24", AvailabilityZone="us-east-1a"
    )["Subnet"]["SubnetId"]
    values = yaml.safe_load(account.text)
    del values["clouds"][0]["zones"]
    values["clouds"][0]["subnets"] = {"us-east-1a": subnet}
    account.yaml.write_text(yaml.safe_dump(values))
    before = account.snapshot()
    assert account.make("--without", "role") == 0
    (rule,) = account.ec2.describe_security_group_rules(
        Filters=[{"Name": "group-id", "Values": list(account.cloud.security_groups)}]
    )["SecurityGroupRules"]
    assert (rule["IsEgress"], rule["IpProtocol"], rule["FromPort"]) == (True, "udp", 51820)
    capsys.readouterr()
    assert account.make("--without", "role") == 0
    assert "nothing is to be done" in capsys.readouterr().out
    assert account.unmake() == 0
    assert account.snapshot() == before


def test_the_second_run_changes_nothing(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    assert account.make() == 0
    after, text = account.snapshot(), account.yaml.read_text()
    capsys.readouterr()
    assert account.make() == 0
    assert "nothing is to be done" in capsys.readouterr().out
    assert (account.snapshot(), account.yaml.read_text()) == (after, text)


def test_a_dry_run_shows_the_plan_and_changes_nothing(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    before = account.snapshot()
    assert account.init("--make", "--cloud", "aws", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "  create  vpc slurm-elastic-alps-aws " in out
    assert "the rights that `iam render aws` prints" in out
    assert (account.snapshot(), account.yaml.read_text()) == (before, account.text)
    assert not account.key.exists()


def test_the_private_key_is_the_owners_alone_and_never_shown(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    assert account.make() == 0
    told = capsys.readouterr()
    assert stat.S_IMODE(account.key.stat().st_mode) == 0o600
    secret = account.key.read_text().splitlines()[1]
    assert secret not in told.out + told.err + account.yaml.read_text()


def test_it_says_what_else_the_new_key_needs(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key alone brings no munge key: nothing uses it without ``join.ssh``."""
    assert account.make() == 0
    text = " ".join(capsys.readouterr().out.partition("next:")[2].split())
    assert f"join: {{ssh: {{key: {account.key}, munge_key: FILE}}}}" in text
    assert "slurm-elastic help joining" in text
    assert "docs/" not in text


def test_running_services_are_to_be_restarted(
    account: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They read the file when they start: without it machines start as before, or not at all."""
    advice = "systemctl restart slurm-elasticd"
    found = [Finding.note("configuration", "older than the file", advice=advice)]
    monkeypatch.setattr(outdated, "examine", lambda _config, _file: found)
    assert account.make() == 0
    assert f"\n  {advice}    # running services" in capsys.readouterr().out
    assert account.unmake() == 0
    assert f"\nnext: {advice}    # running services" in capsys.readouterr().out


CHANGING = [
    "CreateVpc", "CreateInternetGateway", "AttachInternetGateway", "CreateRouteTable",
    "CreateRoute", "CreateSubnet", "ModifySubnetAttribute", "AssociateRouteTable",
    "CreateSecurityGroup", "RevokeSecurityGroupEgress", "AuthorizeSecurityGroupEgress",
    "ImportKeyPair", "CreateLaunchTemplate", "CreateRole", "PutRolePolicy",
    "CreateInstanceProfile", "AddRoleToInstanceProfile",
]  # fmt: skip


def test_these_are_all_calls_that_change_something(account: Account) -> None:
    before = account.control.state().calls
    assert account.make() == 0
    sent = {a for a, count in account.control.state().calls.items() if count > before.get(a, 0)}
    assert {a for a in sent if not a.startswith(("Describe", "Get", "List"))} == set(CHANGING)


def in_tiers(actions: list[str], first: str) -> list[Any]:
    """Each call of ``actions``; only ``first`` in the first tier."""
    marks = {action: () if action == first else (pytest.mark.release,) for action in actions}
    return [pytest.param(action, marks=marks[action]) for action in actions]


@pytest.mark.parametrize("kind", [FaultKind.RESET_BEFORE, FaultKind.RESET_AFTER])
@pytest.mark.parametrize("action", in_tiers(CHANGING, "RevokeSecurityGroupEgress"))
def test_a_run_that_ends_at_any_step_is_completed_and_removed(
    account: Account, action: str, kind: FaultKind, capsys: pytest.CaptureFixture[str]
) -> None:
    before = account.snapshot()
    account.control.fail(Fault(kind=kind, action=action, count=1))
    assert account.make() == 2
    told = capsys.readouterr().err
    assert "done before: " in told
    assert "Run the same command again to complete it" in told
    assert account.yaml.read_text() == account.text
    account.control.heal()
    # Half of it is removed without a trace, too.
    if kind is FaultKind.RESET_AFTER:
        assert account.unmake() == 0
        assert account.snapshot() == before
        account.control.fail(Fault(kind=kind, action=action, count=1))
        assert account.make() == 2
        account.control.heal()
    assert account.make() == 0
    capsys.readouterr()
    assert account.make() == 0
    assert "nothing is to be done" in capsys.readouterr().out
    assert account.unmake() == 0
    assert account.snapshot() == before
    assert account.yaml.read_text() == account.text


REMOVING = [
    "RemoveRoleFromInstanceProfile", "DeleteInstanceProfile", "DeleteRolePolicy", "DeleteRole",
    "DeleteLaunchTemplate", "DeleteKeyPair", "DeleteSecurityGroup", "DisassociateRouteTable",
    "DeleteSubnet", "DeleteRouteTable", "DetachInternetGateway", "DeleteInternetGateway",
    "DeleteVpc",
]  # fmt: skip


@pytest.mark.parametrize("kind", [FaultKind.RESET_BEFORE, FaultKind.RESET_AFTER])
@pytest.mark.parametrize("action", in_tiers(REMOVING, "DeleteSubnet"))
def test_a_removal_that_ends_at_any_step_is_completed(
    account: Account, action: str, kind: FaultKind
) -> None:
    before = account.snapshot()
    assert account.make() == 0
    account.control.fail(Fault(kind=kind, action=action, count=1))
    assert account.unmake() == 2
    account.control.heal()
    assert account.unmake() == 0
    assert account.snapshot() == before
    assert account.yaml.read_text() == account.text


@pytest.mark.parametrize(
    ("action", "right"),
    [("CreateSubnet", "ec2:CreateSubnet"), ("CreateRole", "iam:CreateRole"),
     ("DescribeVpcs", "ec2:DescribeVpcs")],
)  # fmt: skip
def test_a_missing_right_is_named(
    account: Account, action: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "UnauthorizedOperation"
    account.control.fail(Fault(kind=FaultKind.AUTH, action=action, code=code))
    assert account.make() == 2
    told = capsys.readouterr().err
    assert f"the right {right} is missing" in told
    assert "iam render aws --for make" in told
    account.control.heal()


def test_a_network_that_ec2_does_not_know_yet_is_waited_for(account: Account) -> None:
    fault = Fault(kind=FaultKind.AUTH, code="InvalidVpcID.NotFound", action="CreateSubnet", count=1)
    account.control.fail(fault)
    assert account.make() == 0
    assert len(account.cloud.subnets) == 2


def test_what_somebody_changed_stays(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    assert account.make() == 0
    group = account.cloud.security_groups[0]
    permission = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    account.ec2.authorize_security_group_ingress(
        GroupId=group, IpPermissions=[permission | {"IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    )
    account.ec2.create_launch_template_version(
        LaunchTemplateId=account.cloud.launch_template, LaunchTemplateData={"EbsOptimized": True}
    )
    policy = account.iam.list_role_policies(RoleName="slurm-elastic-alps-aws")["PolicyNames"][0]
    everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    account.iam.put_role_policy(
        RoleName="slurm-elastic-alps-aws", PolicyName=policy,
        PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [everything]}),
    )  # fmt: skip
    capsys.readouterr()
    assert account.make() == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"leave security group {group} somebody changed it: it has a rule of its own" in out
    assert "somebody changed it: it has a version 2" in out
    assert "other rights than init gave it" in out
    assert account.unmake() == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"leave security group {group} somebody changed it" in out
    vpcs = account.ec2.describe_vpcs(Filters=[{"Name": "cidr", "Values": ["10.98.0.0/16"]}])
    assert vpcs["Vpcs"], "the group's network stays with it"
    assert account.cloud.security_groups == (group,)
    assert account.cloud.subnets, "and the network stays whole"
    assert account.cloud.key_name is None


def test_nothing_of_others_is_touched(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    """Resources with our names, or with our tags for another cluster or cloud."""
    account.iam.create_role(RoleName="slurm-elastic-alps-aws", AssumeRolePolicyDocument="{}")
    account.ec2.create_key_pair(KeyName="slurm-elastic-alps-aws")
    before = account.snapshot()
    assert account.make() == 2
    told = capsys.readouterr().err
    assert "role slurm-elastic-alps-aws: a resource with this name is there" in told
    assert account.unmake() == 0
    assert "nothing is to be done" in capsys.readouterr().out
    assert account.snapshot() == before
    account.ec2.delete_key_pair(KeyName="slurm-elastic-alps-aws")
    assert account.make("--without", "role") == 0
    other = account.text.replace("name: aws", "name: other").replace("cloud: aws", "cloud: other")
    ours = account.yaml.read_text()
    account.yaml.write_text(other)
    after = account.snapshot()
    assert account.init("--unmake", "--yes") == 0
    assert account.snapshot() == after
    account.yaml.write_text(ours)
    assert account.unmake() == 0
    assert account.snapshot() == before - {"key pair slurm-elastic-alps-aws"}


def test_named_resources_are_kept_and_the_group_is_made_beside_them(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    vpc = account.ec2.create_vpc(CidrBlock="10.5.0.0/16")["Vpc"]["VpcId"]
    subnet = account.ec2.create_subnet(
        VpcId=vpc, CidrBlock="10.5.0.0/24", AvailabilityZone="us-east-1a"
    )["Subnet"]["SubnetId"]
    account.text = account.text.replace(
        "    zones: [us-east-1a, us-east-1b]\n",
        f"    subnets: {{us-east-1a: {subnet}}}\n    key_name: admin\n",
    )
    account.yaml.write_text(account.text)
    before = account.snapshot()
    assert account.make("--without", "role", "--without", "launch-template") == 0
    out = capsys.readouterr().out
    assert f"keep    subnet {subnet}" in out
    assert "keep    key pair admin" in out
    (group,) = account.ec2.describe_security_groups(GroupIds=list(account.cloud.security_groups))[
        "SecurityGroups"
    ]
    assert group["VpcId"] == vpc
    assert not account.key.exists()
    assert account.unmake() == 0
    assert account.snapshot() == before


def test_names_that_a_person_has_put_in_since_stay(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    vpc = account.ec2.create_vpc(CidrBlock="10.5.0.0/16")["Vpc"]["VpcId"]
    theirs = account.ec2.create_subnet(VpcId=vpc, CidrBlock="10.5.0.0/24")["Subnet"]["SubnetId"]
    assert account.make() == 0
    text = account.yaml.read_text().replace("slurm-elastic-alps-aws", "admin")
    start = text.index("    subnets: {")
    end = text.index("\n", start)
    text = (
        text[:start] + f"    subnets: {{us-east-1a: {theirs}, us-east-1b: {theirs}}}" + text[end:]
    )
    account.yaml.write_text(text)
    account.yaml.chmod(0o640)
    capsys.readouterr()
    assert account.make() == 0
    assert "the configuration no longer needs it; --unmake removes it" in capsys.readouterr().out
    assert account.yaml.read_text() == text
    assert account.unmake() == 0
    cloud = account.cloud
    assert (cloud.key_name, cloud.security_groups, cloud.launch_template) == ("admin", (), None)
    assert set(cloud.subnets.values()) == {theirs}
    assert stat.S_IMODE(account.yaml.stat().st_mode) == 0o640


def test_a_second_resource_from_a_lost_answer_is_removed(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    assert account.make() == 0
    before = account.snapshot()
    (vpc,) = account.ec2.describe_vpcs(Filters=[{"Name": "cidr", "Values": ["10.98.0.0/16"]}])[
        "Vpcs"
    ]
    tags = [{"ResourceType": "vpc", "Tags": vpc["Tags"]}]
    account.ec2.create_vpc(CidrBlock="10.98.0.0/16", TagSpecifications=tags)
    capsys.readouterr()
    assert account.make() == 0
    assert "a second one, from a call whose answer was lost" in capsys.readouterr().out
    assert account.snapshot() == before


def test_rights_follow_the_configuration(account: Account) -> None:
    assert account.make() == 0
    text = account.yaml.read_text()
    account.yaml.write_text(text.replace("c5.large", "c5.xlarge").replace("cpus: 2", "cpus: 4"))
    assert account.make() == 0
    role = {"RoleName": "slurm-elastic-alps-aws"}
    (policy,) = account.iam.list_role_policies(**role)["PolicyNames"]
    document = account.iam.get_role_policy(**role, PolicyName=policy)["PolicyDocument"]
    assert "c5.xlarge" in json.dumps(document)
    assert account.cloud.subnets[sorted(account.cloud.subnets)[0]] in json.dumps(document)


def test_rights_have_the_types_of_a_catalogue_before_the_daemon_ever_ran(account: Account) -> None:
    values = yaml.safe_load(account.text)
    values["state_dir"] = str(account.yaml.parent / "state")
    del values["clouds"][0]["types"]
    values["clouds"][0]["catalogue"] = True
    values["pools"][0]["instance_types"] = {"cpus": "2", "max_types": 3}
    account.yaml.write_text(yaml.safe_dump(values))
    account.control.price("*", "*", 0.02)
    assert account.make() == 0
    role = {"RoleName": "slurm-elastic-alps-aws"}
    (policy,) = account.iam.list_role_policies(**role)["PolicyNames"]
    document = account.iam.get_role_policy(**role, PolicyName=policy)["PolicyDocument"]
    (launch,) = [s for s in document["Statement"] if s["Sid"] == "LaunchThese"]
    assert len(launch["Condition"]["StringEquals"]["ec2:InstanceType"]) == 3  # of a thousand


def test_without_a_tunnel_the_group_has_slurms_ports_alone(
    account: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    values = yaml.safe_load(account.text)
    values["join"] = {"head": "10.1.2.3:6900"}
    account.yaml.write_text(yaml.safe_dump(values))
    assert account.make("--without", "role") == 0
    capsys.readouterr()
    assert account.make("--without", "role") == 0
    assert "nothing is to be done" in capsys.readouterr().out
    rules = account.ec2.describe_security_group_rules(
        Filters=[{"Name": "group-id", "Values": list(account.cloud.security_groups)}]
    )["SecurityGroupRules"]
    own = account.cloud.security_groups[0]
    shown = {
        (r["IsEgress"], r["IpProtocol"], r["FromPort"], r["ToPort"],
         r.get("CidrIpv4") or r["ReferencedGroupInfo"]["GroupId"])
        for r in rules
    }  # fmt: skip
    head = "10.1.2.3/32"
    assert shown == {
        (False, "tcp", 6818, 6818, head), (True, "tcp", 6817, 6817, head),
        (True, "tcp", 6900, 6900, head), (True, "tcp", 32768, 60999, head),
        (False, "-1", -1, -1, own), (True, "-1", -1, -1, own),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("network", "servers"),
    [
        (None, {"10.1.2.3-32", "10.1.2.9-32", "192.0.2.8-32"}),
        ({"endpoint": "192.0.2.7:51820", "routes": ["10.1.2.0/24"]}, {"192.0.2.8-32"}),
    ],
)
def test_machines_reach_their_file_servers(
    account: Account, network: object, servers: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Else no slurmd starts, and each machine is paid until its boot time-out."""
    values = yaml.safe_load(account.text)
    mounts = [
        {"path": f"/m{n}", "from": f"{server}:/m"}
        for n, server in enumerate(["head", "10.1.2.9", "192.0.2.8"])
    ]
    values["join"] = {"head": "10.1.2.3", "mounts": mounts}
    if network is not None:
        values["join"]["network"] = {**network, "head_ports": [6817, 2049]}  # type: ignore[dict-item]
    account.yaml.write_text(yaml.safe_dump(values))
    assert account.init("--make", "--dry-run") == 0
    assert set(re.findall(r"egress-tcp-2049-(\S+)", capsys.readouterr().out)) == servers


def test_a_tunnel_that_the_head_opens_needs_one_port_inwards(account: Account) -> None:
    values = yaml.safe_load(account.text)
    values["join"] = {
        "head": "10.1.2.3",
        "network": {"opened_by": "head", "udp_port": 4500, "routes": ["10.1.2.0/24"]},
    }
    account.yaml.write_text(yaml.safe_dump(values))
    assert account.make("--without", "role") == 0
    (rule,) = account.ec2.describe_security_group_rules(
        Filters=[{"Name": "group-id", "Values": list(account.cloud.security_groups)}]
    )["SecurityGroupRules"]
    fields = ("IsEgress", "IpProtocol", "FromPort", "ToPort", "CidrIpv4")
    assert [rule[key] for key in fields] == [False, "udp", 4500, 4500, "0.0.0.0/0"]


@pytest.mark.parametrize(
    ("ports", "first", "last"), [("7000", 7000, 7000), ("6817-6820", 6817, 6820)]
)
def test_the_group_has_the_ports_of_slurm_conf(
    account: Account, ports: str, first: int, last: int, capsys: pytest.CaptureFixture[str]
) -> None:
    conf = account.yaml.parent / "slurm.conf"
    conf.write_text(
        f"ClusterName=alps\nSlurmctldHost=head\nSlurmctldPort={ports}\nSrunPortRange=61000-63000\n"
    )
    values = yaml.safe_load(account.text)
    values["slurm"] = {"conf": str(conf)}
    values["join"] = {"head": "10.1.2.3"}
    account.yaml.write_text(yaml.safe_dump(values))
    assert account.init("--make", "--dry-run") == 0
    rules = set(re.findall(r"egress-tcp-(\S+)-10\.1\.2\.3-32", capsys.readouterr().out))
    assert rules == {ports, "61000-63000"}
    assert account.init("--make", "--dry-run", "--json") == 0
    resources = json.loads(capsys.readouterr().out)["resources"]
    found = {r["key"]: r["properties"] for r in resources}[f"rule-egress-tcp-{ports}-10.1.2.3-32"]
    assert (found["from_port"], found["to_port"]) == (first, last)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--make", "--cloud", "none"), "--cloud: found 'none', expected one of: aws"),
        (("--make", "--cidr", "10.99.0.0/16"), "expected a network apart from 10.99.0.0/16"),
        (("--make", "--cidr", "10.98.0.0/30"), "expected an IPv4 network such as"),
        (("--make",), "this is no terminal: add --yes or --dry-run"),
    ],
)
def test_a_wrong_order_changes_nothing(
    account: Account, arguments: tuple[str, ...], words: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    before = account.snapshot()
    assert account.init(*arguments) == 2
    assert words in capsys.readouterr().err
    assert (account.snapshot(), account.yaml.read_text()) == (before, account.text)


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("head", "headx", "join.head: found headx, which is 127.0.1.1 on this host, expected an"),
        ("head", "127.0.0.1:6900", "join.head: found 127.0.0.1, expected an address that machines"),
        ("endpoint", "127.0.0.1:51820", "join.network.endpoint: found 127.0.0.1, expected an"),
    ],
)
def test_a_loopback_address_is_refused_unless_the_cloud_is_there(
    account: Account, key: str, value: str, found: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def addresses(host: str) -> list[str]:
        return ["127.0.1.1"] if host == "headx" else [host]

    monkeypatch.setattr("slurm_elastic.cli.setting_up.init_make._addresses", addresses)
    values = yaml.safe_load(account.text)
    if key == "head":
        values["join"] = {"head": value}
    else:
        values["join"]["network"]["endpoint"] = value
    account.yaml.write_text(yaml.safe_dump(values))
    assert account.make("--dry-run") == 0  # the emulated EC2 is on loopback, too
    capsys.readouterr()
    del values["clouds"][0]["endpoint"], values["cluster"]["uuid"]
    account.yaml.write_text(yaml.safe_dump(values))
    before = account.snapshot(), sorted(account.yaml.parent.iterdir()), account.yaml.read_text()
    assert account.make() == 2
    assert found in capsys.readouterr().err
    after = account.snapshot(), sorted(account.yaml.parent.iterdir()), account.yaml.read_text()
    assert after == before


@pytest.mark.parametrize("later", [["10.9.9.10"], []])
def test_a_server_whose_name_gives_other_addresses_later_stays_reachable(
    account: Account,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    later: list[str],
) -> None:
    """Machines look the name up themselves: without a rule for its address slurmd never starts."""
    known = {"nas.site": ["10.9.9.9"], "head.site": ["10.1.2.3"]}

    def addresses(host: str) -> list[str]:
        return known.get(host, []) if host.endswith(".site") else [host]

    monkeypatch.setattr("slurm_elastic.cli.setting_up.init_make._addresses", addresses)
    values = yaml.safe_load(account.text)
    mounts = [
        {"path": "/home", "from": "nas.site:/export/home"}, {"path": "/soft", "from": "head:/soft"}
    ]  # fmt: skip
    values["join"] = {"head": "head.site", "mounts": mounts}
    account.yaml.write_text(yaml.safe_dump(values))
    assert account.make() == 0
    servers = set(re.findall(r"egress-tcp-2049-(\S+)", capsys.readouterr().out))
    assert servers == {"0.0.0.0-0", "10.1.2.3-32"}
    before = account.snapshot()
    known["nas.site"] = later
    assert account.make() == 0
    assert account.snapshot() == before


def test_the_uuid_is_made_when_the_plan_is_carried_out(
    account: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = yaml.safe_load(account.text)
    del values["cluster"]["uuid"]
    account.yaml.write_text(yaml.safe_dump(values))
    file = account.yaml.parent / "cluster-uuid"
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert account.init("--make") == 2  # no terminal to ask at
    assert account.init("--make", "--dry-run") == 0
    assert account.unmake() == 0
    assert account.init("--make", "--dry-run", "--json") == 2
    assert "cluster.uuid is not set" in capsys.readouterr().err
    assert not file.exists()
    assert account.make() == 0
    identity = file.read_text().strip()
    (tags,) = [v["Tags"] for v in account.ec2.describe_vpcs()["Vpcs"] if v.get("Tags")]
    assert identity in {tag["Value"] for tag in tags}


def test_on_a_terminal_only_yes_means_yes(
    account: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _question: "")
    before = account.snapshot()
    assert account.init("--make") == 2
    assert "stopped; nothing is changed" in capsys.readouterr().err
    assert account.snapshot() == before
    monkeypatch.setattr("builtins.input", lambda _question: "y")
    assert account.init("--make") == 0


@pytest.mark.parametrize("join", ["tunnel", "routes"])
def test_the_document_has_what_is_made_and_no_secret(
    account: Account, capsys: pytest.CaptureFixture[str], join: str
) -> None:
    if join == "routes":
        start, end = account.text.index("  network:"), account.text.index("clouds:")
        account.yaml.write_text(account.text[:start] + account.text[end:])
    before = account.snapshot()
    assert account.init("--make", "--dry-run", "--json") == 0
    text = capsys.readouterr().out
    document = json.loads(text)
    assert account.snapshot() == before
    rows = {row["key"]: row for row in document["resources"]}
    terraform_page.judge(document["resources"], "aws")
    assert account.make() == 0
    made = re.findall(r"^  create  (.*?)(?:  .*)?$", capsys.readouterr().out, re.MULTILINE)
    assert made == [f"{row['kind']} {row['name']}".strip() for row in rows.values()]
    assert account.key.read_text().splitlines()[1] not in text
    assert account.init("--make", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["resources"] == [], "all of it exists"


def test_a_document_is_of_a_plan(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (("--make", "--json"), ("--unmake", "--dry-run", "--json")):
        assert account.init(*arguments) == 2
        assert "--json needs --make --dry-run" in capsys.readouterr().err
