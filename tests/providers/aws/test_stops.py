"""EC2 stops a machine again that it had begun to start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from slurm_elastic.base.errors import CapacityError
from slurm_elastic.providers.aws.stops import AwsStops

ID = "i-00000000000000001"


class StubApi:
    """One machine that is stopped for a reason."""

    def __init__(self, reason: str) -> None:
        self.record = {"State": {"Name": "stopped"}, "StateReason": {"Code": reason}}
        self.started: list[str] = []

    def send(self, operation: str, request: Mapping[str, list[str]]) -> Mapping[str, Any]:
        if operation == "start_instances":
            self.started += request["InstanceIds"]
        return {"Reservations": [{"Instances": [self.record]}]}


def test_a_start_for_which_ec2_had_no_room_is_a_lack_of_capacity() -> None:
    api = StubApi("Server.InsufficientInstanceCapacity")
    with pytest.raises(CapacityError, match="InsufficientInstanceCapacity"):
        AwsStops(api, "aws").start(ID)  # type: ignore[arg-type]
    assert api.started == []


def test_a_machine_that_we_stopped_is_started() -> None:
    api = StubApi("Client.UserInitiatedShutdown")
    AwsStops(api, "aws").start(ID)  # type: ignore[arg-type]
    assert api.started == [ID]
