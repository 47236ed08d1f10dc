"""The endpoint of an EC2 cloud: AWS itself by another way, or another service."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_elastic.config import Cluster, Config
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import Location, Market
from slurm_elastic.providers.aws.client import plain_client
from slurm_elastic.providers.aws.rate_limit import pace_of
from slurm_elastic.providers.aws.service_client import service_client
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.ownership import ownership_of
from slurm_elastic.providers.base.tags import CLOUD, CLUSTER

PLAIN = AwsCloud(
    name="one", location=Location.PUBLIC, region="eu-west-1", image="ami-1",
    types={"t": InstanceType(cpus=1, memory=1, price=1.0)},
)  # fmt: skip
OF_AWS = (
    "https://vpce-1.ec2.eu-west-1.vpce.amazonaws.com",
    "https://ec2-fips.us-gov-west-1.amazonaws.com",
    "https://ec2.cn-north-1.amazonaws.com.cn:443/",
    "https://ec2.eu-west-1.api.aws",
)
FOREIGN = ("http://127.0.0.1:5000", "https://cloud.example.org:8773/", "https://amazonaws.com.evil")


@pytest.mark.parametrize("endpoint", OF_AWS)
def test_a_vpc_endpoint_leads_to_the_same_machines(endpoint: str) -> None:
    """Else each of two clouds would take the other one's machines for its own, and end them."""
    near = replace(PLAIN, name="two", endpoint=endpoint)
    third = replace(PLAIN, name="three", endpoint=OF_AWS[0])
    cluster = Cluster(name="c", uuid="u")
    site = Config(cluster=cluster, clouds=(PLAIN, near, third), pools=())
    for cloud in (PLAIN, near, third):
        owners = ownership_of(cloud, cluster, site)
        for other in site.clouds:
            assert owners.owner({CLUSTER: "u", CLOUD: other.name}) == other.name


@pytest.mark.parametrize("endpoint", FOREIGN)
def test_another_service_has_machines_of_its_own(endpoint: str) -> None:
    assert not PLAIN.shares_place(replace(PLAIN, name="two", endpoint=endpoint))


@pytest.mark.parametrize("endpoint", OF_AWS)
def test_a_vpc_endpoint_has_ec2s_limits_and_markets(endpoint: str) -> None:
    near = replace(PLAIN, endpoint=endpoint)
    assert pace_of(near) is pace_of(PLAIN)
    assert replace(near, location=Location.ON_PREMISES).markets >= {Market.SPOT}


@pytest.mark.parametrize(
    ("endpoint", "place"),
    [(OF_AWS[0], "https://api.pricing.us-east-1.amazonaws.com"), (FOREIGN[0], FOREIGN[0])],
)
def test_a_vpc_endpoint_of_ec2_serves_no_other_service(
    endpoint: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = replace(PLAIN, endpoint=endpoint)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_PRICING"):
        monkeypatch.delenv(name, raising=False)
    assert plain_client(near, "pricing", "us-east-1").meta.endpoint_url == place
    assert plain_client(near, "ec2", "eu-west-1").meta.endpoint_url == endpoint
    queue = service_client(near, "sqs").meta.endpoint_url
    assert (queue == endpoint) is (endpoint in FOREIGN)
