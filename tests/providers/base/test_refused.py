"""A cloud that cannot be opened answers nothing, and says why."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from slurm_elastic import providers
from slurm_elastic.base.errors import ConfigError, UnopenedError
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import CloudSettings
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
    with pytest.raises(UnopenedError, match=r"^aws: Unusable: its SDK is missing$"):
        call(cloud)


@pytest.mark.parametrize(
    ("error", "raised", "text"),
    [
        (LookupError("unknown encoding: ascii"), ConfigError, "cannot be read by this user; do: "),
        (KeyError("zone"), KeyError, "zone"),
    ],
)
def test_a_python_that_cannot_be_read_is_told_and_a_defect_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception], text: str
) -> None:
    def fail(*_: object) -> NoReturn:
        raise error

    table = SimpleNamespace(kind=lambda _: SimpleNamespace(open=fail), own_names=("fake",))
    monkeypatch.setattr(providers, "table", lambda: table)
    cloud = cast(CloudSettings, SimpleNamespace(name="x", provider="fake", unusable=""))
    with pytest.raises(raised, match=text):
        providers.open_provider(cloud, Cluster(name="c", uuid="u"))
