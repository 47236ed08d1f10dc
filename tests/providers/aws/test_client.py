"""The client that reads no more of a machine than we use."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from botocore.config import Config
from needs import ROOT
from providers.aws.bed import AwsBed

from slurm_elastic.base import trust
from slurm_elastic.base.errors import AuthError, TransientError
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import Location, Market
from slurm_elastic.providers.aws import convert
from slurm_elastic.providers.aws.client import AwsApi, _parse_time, open_client
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.testing.contract import spec_for

pytestmark = pytest.mark.usefixtures("guarded")


def test_machines_read_the_same_as_by_a_client_that_reads_all(bed: AwsBed) -> None:
    provider = bed.open()
    launched = provider.launch(spec_for(bed, provider, 3))
    reservations = bed.client.describe_instances()["Reservations"]
    whole = [i for r in reservations for i in r["Instances"]]
    assert "VpcId" in whole[0]
    by_id = {i.id: i for i in convert.instances(whole, bed.settings())}
    assert {i.id: i for i in provider.instances()} == by_id
    assert {i.id for i in launched} == set(by_id)


def test_an_answer_has_only_what_is_read(bed: AwsBed) -> None:
    client = open_client(bed.settings(), Config())
    answers = [
        client.run_instances(ImageId="ami-1", InstanceType="c5.large", MinCount=1, MaxCount=1),
        client.describe_instances()["Reservations"][0],
    ]
    for answer in answers:
        machine = answer["Instances"][0]
        assert set(machine) <= set(convert.READ)
        assert set(machine["Placement"]) == set(convert.READ_OF_PLACEMENT)


@pytest.mark.parametrize(
    "text",
    ["2026-11-20T06:29:24.000Z", "2026-11-20T06:29:24Z", "20261120T062924Z", 1795156164],
)
def test_times_in_any_form(text: object) -> None:
    assert _parse_time(text) == datetime(2026, 11, 20, 6, 29, 24, tzinfo=UTC)


def test_an_answer_whose_pages_never_end_is_none(bed: AwsBed) -> None:
    api = AwsApi(bed.settings(), None)
    api.send = lambda *_: {"Reservations": [], "NextToken": "more"}  # type: ignore[method-assign, assignment]
    with pytest.raises(TransientError, match="no end after 1000 pages"):
        list(api.pages("describe_instances", "Reservations", {}))


@ROOT
@pytest.mark.parametrize("name", ["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"])
def test_credentials_that_another_could_have_written_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A profile may name a program to be run."""
    monkeypatch.setattr(trust, "_slurm_user", set())
    monkeypatch.delenv("SUDO_UID", raising=False)
    file = tmp_path / "aws"
    file.write_text("[default]\n")
    monkeypatch.setenv(name, str(file))
    settings = AwsCloud(
        name="aws", location=Location.PUBLIC, region="us-east-1", image="ami-12345678",
        types={"c5.large": InstanceType(cpus=2, memory=4096, price=0.085)},
    )  # fmt: skip
    open_client(settings, Config())
    os.chown(file, 65534, 65534)
    with pytest.raises(AuthError, match="aws belongs to nobody, not to root"):
        open_client(settings, Config())


RECORD = {
    "InstanceId": "i-1",
    "InstanceType": "p5.48xlarge",
    "LaunchTime": datetime(2026, 11, 20, tzinfo=UTC),
    "State": {"Name": "running"},
    "PrivateIpAddress": "10.0.0.7",
    "Ipv6Address": "2001:db8::7",
}


@pytest.mark.parametrize(
    ("lifecycle", "market"),
    [
        (None, Market.ON_DEMAND),
        ("spot", Market.SPOT),
        ("capacity-block", Market.RESERVED),
        ("interruptible-capacity-reservation", Market.RESERVED),
        ("scheduled", Market.RESERVED),
        ("a-market-of-tomorrow", Market.RESERVED),
    ],
)
def test_a_machines_market_is_what_ec2_says(
    bed: AwsBed, lifecycle: str | None, market: Market
) -> None:
    """None that is not known is taken for on demand."""
    record = RECORD if lifecycle is None else {**RECORD, "InstanceLifecycle": lifecycle}
    (found,) = convert.instances([record], bed.settings())
    assert found.market is market


def test_a_machine_without_ipv4_has_its_address_of_ipv6(bed: AwsBed) -> None:
    lacks = {key: value for key, value in RECORD.items() if key != "PrivateIpAddress"}
    both, only = convert.instances([RECORD, lacks], bed.settings())
    assert (both.address, only.address) == ("10.0.0.7", "2001:db8::7")
    assert "Ipv6Address" in convert.READ, "the client knows no other"


def test_a_machines_public_address_is_apart_from_its_own(bed: AwsBed) -> None:
    (found,) = convert.instances([{**RECORD, "PublicIpAddress": "192.0.2.7"}], bed.settings())
    assert (found.address, found.public_address) == ("10.0.0.7", "192.0.2.7")
    assert "PublicIpAddress" in convert.READ


@pytest.mark.parametrize(
    ("rule", "is_open"),
    [
        ({"IpProtocol": "udp", "FromPort": 51820, "ToPort": 51820, "IpRanges": ["any"]}, True),
        ({"IpProtocol": "udp", "FromPort": 1, "ToPort": 65535, "Ipv6Ranges": ["any"]}, True),
        ({"IpProtocol": "-1", "PrefixListIds": ["pl-1"]}, True),
        ({"IpProtocol": "-1", "UserIdGroupPairs": ["itself"]}, False),
        ({"IpProtocol": "tcp", "FromPort": 51820, "ToPort": 51820, "IpRanges": ["any"]}, False),
        ({"IpProtocol": "udp", "FromPort": 1, "ToPort": 1024, "IpRanges": ["any"]}, False),
    ],
)
def test_a_rule_lets_the_heads_udp_in(rule: dict[str, object], is_open: bool) -> None:
    assert convert.lets_udp_in(rule, 51820) is is_open
