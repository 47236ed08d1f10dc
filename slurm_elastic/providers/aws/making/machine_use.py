"""Finds the machines that use the resources which ``init --make`` created."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from slurm_elastic.providers.aws.making.calls import Calls, Marks, tags_in
from slurm_elastic.providers.base.tags import CLOUD, CLUSTER

OF_OUR_MACHINES = "machines of the cluster"
"""In place of an id: a launch template is used by all machines of its cloud."""
_MAX_SHOWN = 3
_STATES = ["pending", "running", "shutting-down", "stopping", "stopped"]


def users_by_id(calls: Calls, marks: Marks, ids: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """The users of each resource by its id or name: machines, and network interfaces of other
    services.
    """
    users: dict[str, list[str]] = {}
    states = [{"Name": "instance-state-name", "Values": _STATES}]
    for reservation in calls.all_of("describe_instances", "Reservations", Filters=states):
        for machine in reservation.get("Instances", ()):
            for used in _used_by(machine, marks):
                users.setdefault(used, []).append(machine["InstanceId"])
    for interface in calls.all_of("describe_network_interfaces", "NetworkInterfaces"):
        if interface.get("Attachment", {}).get("InstanceId"):
            continue
        groups = {group["GroupId"] for group in interface.get("Groups", ())}
        for used in {interface.get("SubnetId", ""), *groups} & set(ids):
            shown = f"network interface {interface['NetworkInterfaceId']}"
            users.setdefault(used, []).append(shown)
    return {used: _shortened(names) for used, names in users.items()}


def _used_by(machine: Mapping[str, Any], marks: Marks) -> Iterator[str]:
    yield machine.get("SubnetId", "")
    for group in machine.get("SecurityGroups", ()):
        yield group["GroupId"]
    yield machine.get("KeyName", "")
    profile = machine.get("IamInstanceProfile", {}).get("Arn", "")
    yield f"profile {profile.rpartition('/')[2]}"
    tags = tags_in(machine)
    yield tags.get("aws:ec2launchtemplate:id", "")
    if tags.get(CLUSTER) == marks.cluster and tags.get(CLOUD) == marks.cloud:
        yield OF_OUR_MACHINES


def _shortened(names: Collection[str]) -> tuple[str, ...]:
    unique = sorted(set(names))
    more = len(unique) - _MAX_SHOWN
    shown = tuple(unique[:_MAX_SHOWN])
    return (*shown, f"{more} more") if more > 0 else shown
