"""EC2's machines, stopped and started again: StopInstances, StartInstances (EC2 API reference).

A machine on demand with its root on EBS keeps disk, private address and tags. One whose root is on
the instance store, and one of a spot request of ours, cannot be stopped (UnsupportedOperation); the
shutdown behaviour ``terminate`` is about machines that switch themselves off, not about this call.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.base.errors import InstanceNotFound, UnsettledError
from slurm_elastic.providers.aws import client
from slurm_elastic.providers.aws.client import Api

WRONG_STATE = "IncorrectInstanceState"
_GONE = ("shutting-down", "terminated")


class Stopping:
    """Stops and starts machines of one cloud; its ids are those of our machines."""

    def __init__(self, api: Api, cloud: str) -> None:
        self._api = api
        self._cloud = cloud

    def stop(self, ids: Sequence[str]) -> None:
        """All of them, or an error."""
        for start in range(0, len(ids), client.PAGE):
            some = list(ids[start : start + client.PAGE])
            self._api.send("stop_instances", {"InstanceIds": some}, len(some))

    def start(self, instance: str) -> None:
        """UnsettledError while it stops yet: EC2 starts what has stopped."""
        state = self._state(instance)
        if state in _GONE:
            raise InstanceNotFound(self._cloud, state, f"{instance} has ended")
        if state == "stopping":
            raise UnsettledError(self._cloud, WRONG_STATE, f"{instance} is still stopping")
        self._api.send("start_instances", {"InstanceIds": [instance]})

    def _state(self, instance: str) -> str:
        request = {"InstanceIds": [instance]}
        answer = self._api.send("describe_instances", request)
        found = [r for reservation in answer["Reservations"] for r in reservation["Instances"]]
        return str(found[0]["State"]["Name"]) if found else "terminated"
