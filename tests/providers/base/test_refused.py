"""A cloud that cannot be opened answers nothing, and says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_elastic.base.errors import AuthError
from slurm_elastic.model.cluster import LaunchSpec, Location, Market, Offer, Pool
from slurm_elastic.providers.base.refused import RefusedProvider

POOL = Pool(name="p", cloud="aws", nodes=("n1",), cpus=2, real_memory=3000)
OFFER = Offer(
    cloud="aws", location=Location.PUBLIC, instance_type="t", zone="z", market=Market.SPOT,
    price=0.1, cpus=2, memory=4096,
)  # fmt: skip
SPEC = LaunchSpec(generation="g1", pool=POOL, nodes=("n1",), offer=OFFER)


@pytest.mark.parametrize(
    "call",
    [
        lambda cloud: cloud.offers(POOL),
        lambda cloud: cloud.launch(SPEC),
        lambda cloud: cloud.instances(),
        lambda cloud: cloud.terminate(["i-1"]),
        lambda cloud: cloud.notices(),
        lambda cloud: cloud.check(),
    ],
    ids=["offers", "launch", "instances", "terminate", "notices", "check"],
)
def test_no_call_takes_its_machines_for_lost(call: Callable[[RefusedProvider], object]) -> None:
    cloud = RefusedProvider("aws", "its SDK is missing")
    assert cloud.name == "aws"
    with pytest.raises(AuthError, match=r"^aws: Unusable: its SDK is missing$"):
        call(cloud)
