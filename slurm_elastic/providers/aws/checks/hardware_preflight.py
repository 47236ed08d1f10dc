"""Checks with EC2 that pools can have EFA and placement groups as their section ``machine`` says.

``rights`` tries disks by a dry run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.machine_options import CLUSTER_GROUP
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.efa import EfaTypes
from slurm_elastic.providers.aws.hardware import for_pool
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.preflight import CheckRunner

_CHECKS = CheckRunner(
    "give the account the rights of `slurm-elastic iam render aws`",
    "correct the pool's section machine",
)
_SPARED = "launches do not need it; allow ec2:{} to see them here"
_ALL_TRAFFIC = "-1"


def examine(
    api: AwsApi, settings: AwsCloud, pools: Sequence[Pool], efa: EfaTypes
) -> Iterator[Finding]:
    """Yield all findings. A call that EC2 refuses is a finding, too."""
    with_efa = [pool for pool in pools if pool.machine.rdma]
    for pool in with_efa:
        yield from _CHECKS.at(
            f"EFA of pool {pool.name}", "instance types with EFA", lambda: _types(pool, efa)  # noqa: B023 - it is called at once
        )  # fmt: skip
    if with_efa and settings.security_groups:
        yield from _CHECKS.at(
            "security groups for EFA", "a group that allows itself",
            lambda: _groups(api, settings), _SPARED.format("DescribeSecurityGroups"),
        )  # fmt: skip
    for pool in pools:
        group = pool.machine.placement_group
        if group is not None and group != CLUSTER_GROUP:
            yield from _CHECKS.at(
                f"placement group {group}", "a group of this region",
                lambda: _placement(api, settings, pool, group),  # noqa: B023
                _SPARED.format("DescribePlacementGroups"),
            )  # fmt: skip


def _types(pool: Pool, efa: EfaTypes) -> Iterator[Finding]:
    subject, counts = f"EFA of pool {pool.name}", efa.interfaces(pool.instance_types)
    without = [name for name in pool.instance_types if name not in counts]
    if not counts:
        expected = "at least one type with EFA; the pool has no offer"
        advice = "name others in instance_types, or remove machine.rdma"
        yield Finding.wrong(subject, f"{', '.join(without)} have no EFA", expected, advice)
    elif without:
        advice = "remove them from instance_types: they are not used"
        yield Finding.note(subject, f"{', '.join(without)} have no EFA", "EFA", advice)
    else:
        interfaces = ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))
        yield Finding.ok(subject, f"interfaces by type: {interfaces}")


def _groups(api: AwsApi, settings: AwsCloud) -> Iterator[Finding]:
    """Check the security groups for EFA: its traffic needs a rule that names the group itself, in
    both directions. A rule for 0.0.0.0/0 does not cover it ("Get started with EFA and MPI",
    step 1).
    """
    subject = "security groups for EFA"
    answer = api.send("describe_security_groups", {"GroupIds": list(settings.security_groups)})
    groups = answer.get("SecurityGroups", ())
    fit = [g["GroupId"] for g in groups if _allows_itself(g)]
    if fit:
        yield Finding.ok(subject, f"{', '.join(fit)} allows all traffic to and from itself")
        return
    names = ", ".join(settings.security_groups)
    expected = (
        "one group with a rule for all traffic from itself, and one for all traffic to itself"
    )
    advice = (
        "for d in ingress egress; do aws ec2 authorize-security-group-$d --group-id GROUP "
        "--ip-permissions 'IpProtocol=-1,UserIdGroupPairs=[{GroupId=GROUP}]'; done"
    )
    yield Finding.wrong(subject, f"{names}: no group allows itself", expected, advice)


def _allows_itself(group: Mapping[str, Any]) -> bool:
    return all(
        any(
            rule.get("IpProtocol") == _ALL_TRAFFIC
            and group["GroupId"] in [p.get("GroupId") for p in rule.get("UserIdGroupPairs", ())]
            for rule in group.get(direction, ())
        )
        for direction in ("IpPermissions", "IpPermissionsEgress")
    )


def _placement(api: AwsApi, settings: AwsCloud, pool: Pool, group: str) -> Iterator[Finding]:
    subject = f"placement group {group}"
    key = "GroupIds" if group.startswith("pg-") else "GroupNames"
    answer = api.send("describe_placement_groups", {key: [group]})
    record: Mapping[str, Any] = next(iter(answer.get("PlacementGroups", ())), {})
    strategy, state = record.get("Strategy", "?"), record.get("State", "not there")
    zones = pool.zones or for_pool(settings, pool).known_zones
    if state != "available":
        advice = "aws ec2 create-placement-group --strategy cluster --group-name NAME"
        yield Finding.wrong(subject, state, "available", advice)
    elif strategy == "cluster" and len(zones) != 1:
        expected = f"one zone in pool {pool.name}: a group of strategy cluster is in one zone"
        yield Finding.wrong(subject, f"zones {', '.join(zones) or 'of the region'}", expected,
                            "set the pool's zones")  # fmt: skip
    else:
        yield Finding.ok(subject, f"available, strategy {strategy}")
