"""Which of EC2's records are machines of a cloud, and which of those that ended are told of."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import InstanceState, Location
from slurm_elastic.providers.aws.instances import Ec2Instances
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base import tags
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.testing.contract import UUID

SETTINGS = AwsCloud(
    name="aws", location=Location.PUBLIC, region="us-east-1", image="ami-1",
    types={"t": InstanceType(cpus=1, memory=1, price=1.0)},
)  # fmt: skip
OURS = {tags.CLUSTER: UUID, tags.CLOUD: "aws", tags.GENERATION: "g1"}
RUNNING, GONE = "running", "terminated"


def record(ident: str, state: str = RUNNING, marks: dict[str, str] | None = None) -> dict[str, Any]:
    own = OURS if marks is None else marks
    return {
        "InstanceId": ident, "InstanceType": "t", "State": {"Name": state},
        "LaunchTime": dt.datetime(2026, 11, 21, tzinfo=dt.UTC),
        "Tags": [{"Key": key, "Value": value} for key, value in own.items()],
    }  # fmt: skip


def machines(*clouds: str) -> Ec2Instances:
    owners = Ownership(cluster=UUID, clouds=frozenset({"aws", *clouds}))
    return Ec2Instances(SETTINGS, owners)


def test_only_those_with_the_clouds_tags_are_its_own() -> None:
    made = machines("other")
    found = made.read([
        record("i-1"), record("i-2", marks={}), record("i-3", marks=OURS | {tags.CLOUD: "other"}),
    ])  # fmt: skip
    assert [one.id for one in found] == ["i-1"]
    assert made.ours.ids == {"i-1"}
    assert made.is_own(record("i-1"))
    assert not made.is_own(record("i-3", marks=OURS | {tags.CLOUD: "other"}))


def test_one_that_may_be_any_clouds_is_told_of_once_and_ended_by_who_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = machines("other")
    unclear = [record(ident, marks={tags.CLUSTER: UUID}) for ident in ("i-2", "i-1")]
    for _ in range(2):
        assert made.read(unclear) == []
    assert made.ours.ids == {"i-1", "i-2"}
    assert len(caplog.records) == 1


def standing(made: Ec2Instances, *records: dict[str, Any]) -> list[tuple[str, InstanceState]]:
    return [(one.id, one.state) for one in made.standing(made.read(records))]


def test_one_that_was_lost_is_listed_once_more() -> None:
    made = machines()
    there = ("i-1", InstanceState.RUNNING)
    assert standing(made, record("i-1"), record("i-2")) == [there, ("i-2", InstanceState.RUNNING)]
    lost = (record("i-1"), record("i-2", GONE))
    assert standing(made, *lost) == [there, ("i-2", InstanceState.TERMINATED)]
    assert standing(made, *lost) == [there]
    assert standing(made, *lost, record("i-3", GONE)) == [there, ("i-3", InstanceState.TERMINATED)]
    assert standing(made, *lost, record("i-3", GONE)) == [there]


def test_one_that_we_ended_is_not_lost() -> None:
    made = machines()
    standing(made, record("i-1"), record("i-2"))
    made.note_ended(["i-2"])
    there = ("i-1", InstanceState.RUNNING)
    for _ in range(2):
        assert standing(made, record("i-1"), record("i-2", GONE)) == [there]


def test_of_what_is_listed_no_more_nothing_is_kept() -> None:
    made = machines()
    made.note_ended(["i-2"])
    standing(made, record("i-2", GONE), record("i-3", GONE))
    assert (made._ended, set(made._losses._reports)) == ({"i-2"}, {"i-3"})
    standing(made, record("i-1"))
    assert (made._ended, set(made._losses._reports)) == (set(), set())
