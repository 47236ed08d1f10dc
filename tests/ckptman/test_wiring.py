"""Which sources of notices and prices the second service opens for a configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.ckptman import wiring
from slurm_elastic.ckptman.sources import NodeComments
from slurm_elastic.ckptman.wiring import open_pollers, open_prices
from slurm_elastic.config import Config
from slurm_elastic.config.basics.metadata_service import AZURE, GCE, NO_WARNINGS, MetadataService
from slurm_elastic.config.cloud_kinds import CloudKind
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.sections.checkpoint import PriceSettings
from slurm_elastic.config.sections.joining import Join
from slurm_elastic.model.cluster import Location
from tests.ckptman.world import CkptWorld

SERVICES = {"gce": GCE, "azure": AZURE, "none": NO_WARNINGS}


class MistCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="mist"):
    """A cloud of another package."""

    service: str = "gce"
    by_user_data: ClassVar[bool] = True
    has_spot_prices: ClassVar[bool] = True

    @property
    def metadata(self) -> MetadataService:
        return SERVICES[self.service]


class Feed:
    def __init__(self, name: str, price: float | None) -> None:
        self.name, self.price = name, price

    def read(self, keys: Any, since: float) -> Any:
        if self.price is None:
            raise OSError(f"{self.name} cannot be read")
        return {key: ((since, self.price),) for key in keys if key[0] == self.name}


@pytest.fixture
def world() -> Iterator[CkptWorld]:
    made = CkptWorld()
    yield made
    made.close()


def with_clouds(world: CkptWorld, *clouds: MistCloud, **changes: Any) -> Config:
    return replace(world.config, clouds=(*world.config.clouds, *clouds), **changes)


@pytest.mark.parametrize(
    ("service", "join", "is_read"),
    [
        ("gce", Join(head="head"), True), ("azure", Join(head="head"), True),
        ("none", Join(head="head"), False), ("gce", Join(), False),
    ],
)  # fmt: skip
def test_comments_of_nodes_are_read_if_a_metadata_service_gives_warnings(
    world: CkptWorld, service: str, join: Join, *, is_read: bool
) -> None:
    """Else nobody reads the warnings, and the jobs of a machine that is taken are not saved."""
    cloud = MistCloud(name="mist", location=Location.PUBLIC, service=service)
    site = dataclasses.replace(world.ckpt, config=with_clouds(world, cloud, join=join))
    assert world.service is not None
    names = [poller._source.name for poller in open_pollers(site, world.service)]
    assert (NodeComments.name in names) is is_read


def test_a_cloud_that_could_not_be_opened_is_opened_at_a_later_reading(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the cloud may be away for the moment in which the service starts."""
    reasons = ["user_data: no such file", "user_data: no such file"]

    def open_provider(*_: object) -> Any:
        if reasons:
            raise ConfigError(reasons.pop())
        return world.clouds["pub"]

    monkeypatch.setattr(wiring, "open_provider", open_provider)
    cloud = next(c for c in world.config.clouds if c.name == "pub")
    providers = wiring._open_providers(replace(world.config, clouds=(cloud,)))
    site = dataclasses.replace(world.ckpt, providers=providers)
    assert world.service is not None
    name = "notices of pub"
    (poller,) = [p for p in open_pollers(site, world.service) if p._source.name == name]
    assert not poller.poll()
    (trouble,) = [row for row in world.ledger.health.all() if row.name == name]
    assert "no such file" in (trouble.error or "")
    assert poller.poll()
    assert not reasons


class QueueCloud(MistCloud, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="queue"):
    has_queue: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("clouds", "queue_cloud", "is_read"),
    [
        ([QueueCloud], None, False), ([QueueCloud], "cloud0", False),
        ([QueueCloud, MistCloud], None, True), ([QueueCloud, QueueCloud], "cloud1", True),
    ],
)  # fmt: skip
def test_comments_of_nodes_are_read_beside_a_queue_of_another_cloud(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch, clouds: list[type[MistCloud]],
    queue_cloud: str | None, *, is_read: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(wiring, "_queue_client", lambda _: None)
    found = [kind(name=f"cloud{n}", location=Location.PUBLIC) for n, kind in enumerate(clouds)]
    plain = with_clouds(world, *found, join=Join(head="head"))
    notices = replace(plain.checkpoint.notices, queue_url="https://q", queue_cloud=queue_cloud)
    config = replace(plain, checkpoint=replace(plain.checkpoint, notices=notices))
    site = dataclasses.replace(world.ckpt, config=config)
    assert world.service is not None
    names = [poller._source.name for poller in open_pollers(site, world.service)]
    assert (NodeComments.name in names) is is_read


class Kinds:
    def __init__(self, feeds: dict[str, Feed]) -> None:
        self.feeds = feeds

    def kind(self, name: str) -> CloudKind:
        assert name == "mist"

        def open_feed(cloud: MistCloud, pools: object) -> Feed:
            del pools
            return self.feeds[cloud.name]

        return CloudKind(settings=MistCloud, open=lambda *_: None, spot_prices=open_feed)  # type: ignore[arg-type,return-value]


def test_each_cloud_that_reports_its_spot_prices_is_asked(
    world: CkptWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cloud that does not answer keeps no prices of the others back."""
    feeds = {"a": Feed("a", None), "b": Feed("b", 0.25)}
    monkeypatch.setattr(wiring, "kinds", lambda: Kinds(feeds))
    clouds = [MistCloud(name=name, location=Location.PUBLIC) for name in feeds]
    settings = replace(
        world.config.checkpoint, policy="threshold", prices=PriceSettings(source="cloud")
    )
    book = open_prices(with_clouds(world, *clouds, checkpoint=settings))
    assert book is not None
    assert book.name == "a, b"
    with pytest.raises(OSError, match="a cannot be read"):
        book.refresh([("a", "t", "z"), ("b", "t", "z")])
    assert list(book.prices()) == [("b", "t", "z")]
    feeds["a"].price = 0.5
    book.refresh([("a", "t", "z"), ("b", "t", "z")])
    assert sorted(book.prices()) == [("a", "t", "z"), ("b", "t", "z")]
