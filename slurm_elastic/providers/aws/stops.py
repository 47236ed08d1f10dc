"""Stops and starts EC2's machines: StopInstances and StartInstances (EC2 API reference).

An on-demand machine with its root on EBS keeps disk, private address and tags. Machines with their
root on the instance store, and machines of our spot requests, cannot be stopped
(UnsupportedOperation). The shutdown behaviour ``terminate`` applies when a machine powers itself
off, not to StopInstances.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.base.errors import CapacityError, InstanceNotFound, UnsettledError
from slurm_elastic.providers.aws import client
from slurm_elastic.providers.aws.client import AwsApi

WRONG_STATE = "IncorrectInstanceState"
_NO_ROOM = ("Server.InsufficientInstanceCapacity",)
"""EC2's reason for stopping a machine that it had begun to start (API reference: StateReason).
"""
_GONE = ("shutting-down", "terminated")


class AwsStops:
    """Stops and starts machines of one cloud. All ids must be of our own machines."""

    def __init__(self, api: AwsApi, cloud: str) -> None:
        self._api = api
        self._cloud = cloud

    def stop(self, ids: Sequence[str]) -> None:
        """Stop all these machines, or raise an error."""
        for start in range(0, len(ids), client.PAGE):
            page = list(ids[start : start + client.PAGE])
            self._api.send("stop_instances", {"InstanceIds": page}, len(page))

    def start(self, instance: str) -> None:
        """Start a stopped machine. UnsettledError while it is still stopping, because EC2 cannot
        start it yet. InstanceNotFound if it has ended. CapacityError if EC2 accepted an earlier
        start and stopped the machine again.
        """
        state, reason = self._state(instance)
        if state in _GONE:
            raise InstanceNotFound(self._cloud, state, f"{instance} has ended")
        if state == "stopping":
            raise UnsettledError(self._cloud, WRONG_STATE, f"{instance} is still stopping")
        if state == "stopped" and reason in _NO_ROOM:
            raise CapacityError(self._cloud, reason, f"{instance} was started and stopped again")
        self._api.send("start_instances", {"InstanceIds": [instance]})

    def _state(self, instance: str) -> tuple[str, str]:
        """The machine's state, and the code of EC2's reason for it."""
        request = {"InstanceIds": [instance]}
        answer = self._api.send("describe_instances", request)
        records = [r for reservation in answer["Reservations"] for r in reservation["Instances"]]
        # EC2 no longer lists a machine that ended more than about an hour ago.
        if not records:
            return "terminated", ""
        reason = records[0].get("StateReason") or {}
        return str(records[0]["State"]["Name"]), str(reason.get("Code", ""))
