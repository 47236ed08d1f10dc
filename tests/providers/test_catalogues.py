"""Clouds asked for their catalogues, over the emulated EC2, nova's stand-in and OpenNebula's front
end; and slurm-elasticd's keeper of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated import running_ec2, running_one
from msgspec.structs import replace
from patience import patience
from providers.aws.bed import AwsBed
from providers.opennebula.bed import OneBed
from providers.openstack.bed import StackBed
from providers.openstack.stand_in import StandIn

from slurm_elastic.base.errors import AuthError, ProviderError
from slurm_elastic.config import Cluster, Config, PoolSettings
from slurm_elastic.config.catalogue import Catalogue, from_state, kept, path_of
from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.config.sections.requirements import KnownType, Requirements
from slurm_elastic.model.cluster import LaunchSpec, Market
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.policies.launch.ranking import mispriced
from slurm_elastic.providers import catalogues, open_provider
from slurm_elastic.providers.openstack.known_types import _known_type
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.nebula.control import OneControl
from slurm_elastic.slurm.conf import plan
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.doctor import catalogue as doctor

UUID = "7d1f0c52-4d8e-4f5b-9a3e-0f6c1f5f0a11"


@pytest.fixture(scope="module")
def ec2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ec2Control]:
    with running_ec2(tmp_path_factory.mktemp("ec2")) as control:
        yield control


@pytest.fixture
def bed(ec2: Ec2Control) -> AwsBed:
    return AwsBed(ec2)


def config_of(bed: AwsBed, state: Path, wanted: object, **types: object) -> Config:
    cloud = bed.settings(types=dict(types), catalogue=True, api_timeout=patience(60))
    pool = PoolSettings(
        name="pub", cloud="aws", nodes="pub[1-4]", cpus=4, memory=8192, instance_types=wanted,
        markets=(Market.SPOT, Market.ON_DEMAND),
    )  # fmt: skip
    return Config(
        cluster=Cluster(name="site", uuid=UUID), clouds=(cloud,), pools=(pool,),
        state_dir=str(state),
    )  # fmt: skip


SOME = Requirements(cpus="4..8", memory=">=8G", generation=">=5", exclude=("t*",), max_types=12)


def test_ec2_tells_types_and_prices(bed: AwsBed) -> None:
    found = {
        t.name: t
        for t in catalogues.ask(bed.settings(catalogue=True, api_timeout=patience(60)), 1.0).types
    }
    assert len(found) > 500
    large = found["c5.large"]
    assert (large.cpus, large.memory, large.price) == (2, 4096, 0.085)
    assert (large.arch, large.generation) == ("x86_64", 5)
    assert found["g4dn.xlarge"].gres == {"gpu": 1, "gpu:t4": 1}
    assert found["c6g.large"].arch == "arm64"
    assert not any(name.endswith(".metal") for name in found)


@pytest.mark.release
def test_a_flexible_pool_has_dozens_of_offers(bed: AwsBed, tmp_path: Path) -> None:
    plain = config_of(bed, tmp_path, SOME)
    config = catalogues.completed(plain, time.time())
    bed.control.price("*", "*", 0.01)
    provider = open_provider(config.clouds[0], config.cluster, config)
    offers = provider.offers(plan.pools_of(config)[0])
    assert len({offer.instance_type for offer in offers}) == 12
    assert len(offers) >= 24
    assert all(4 <= offer.cpus <= 8 and offer.memory >= 8192 for offer in offers)


@pytest.mark.release
def test_spot_above_the_catalogues_price_blocks_the_type(bed: AwsBed, tmp_path: Path) -> None:
    bed.control.list_price("c5.xlarge", 0.05)
    bed.control.price("c5.xlarge", "*", 0.09)
    config = catalogues.completed(config_of(bed, tmp_path, ("c5.xlarge",)), time.time())
    provider = open_provider(config.clouds[0], config.cluster, config)
    offers = provider.offers(plan.pools_of(config)[0])
    assert offers
    assert all("0.09" in str(mispriced(offer)) for offer in offers)


def test_the_price_list_refused_is_the_cloud_refused(bed: AwsBed, tmp_path: Path) -> None:
    bed.control.fail(Fault(kind=FaultKind.AUTH, action="GetProducts"))
    with pytest.raises(AuthError):
        catalogues.ask(bed.settings(catalogue=True, api_timeout=patience(60)), 1.0)
    plain = config_of(bed, tmp_path, SOME)
    read = catalogues.gathered(plain, time.time())
    config = catalogues.completed_by(plain, read, time.time())
    assert config.clouds[0].shapes == {}
    cloud, pools = config.clouds[0], plan.pools_of(config)
    (finding,) = doctor.examine(cloud, pools, read["aws"], time.time())
    assert finding.level is FindingLevel.WRONG
    assert "iam render aws" in finding.advice


@pytest.mark.release
def test_doctor_compares_typed_prices(bed: AwsBed, tmp_path: Path) -> None:
    def of(price: float) -> InstanceType:
        return InstanceType(cpus=4, memory=8192, price=price)

    types = {"c5.xlarge": of(0.1), "m5.xlarge": of(0.5), "c5d.xlarge": of(0.17)}
    plain = config_of(bed, tmp_path, tuple(types), **types)
    read = catalogues.gathered(plain, time.time())
    config = catalogues.completed_by(plain, read, time.time())
    told = {
        f.subject: f.level
        for f in doctor.examine(config.clouds[0], plan.pools_of(config), read["aws"], time.time())
    }
    assert told == {
        "catalogue": FindingLevel.OK,
        "price of c5.xlarge": FindingLevel.WRONG,
        "price of m5.xlarge": FindingLevel.NOTE,
    }


def away(cloud: CloudSettings, now: float) -> Catalogue:
    raise ProviderError(cloud.name, "Timeout", "no answer")


def test_one_that_comes_while_a_cloud_is_asked_counts(
    bed: AwsBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = config_of(bed, tmp_path, SOME)
    path = path_of(plain, plain.clouds[0])
    known = KnownType(name="c5.xlarge", cpus=4, memory=8192, price=0.17)
    written = Catalogue(cloud="aws", at=1.0, types=(known,))

    def slow(cloud: CloudSettings, now: float) -> Catalogue:
        catalogues.keep(path, written)
        return away(cloud, now)

    monkeypatch.setattr(catalogues, "ask", slow)
    assert catalogues.gathered(plain, 1.0) == {"aws": written}


def test_doctor_judges_by_the_catalogue_that_the_pools_were_made_by(
    bed: AwsBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurm-elasticd may write the first one in between; then no type is missing, but unread."""
    plain = config_of(bed, tmp_path, SOME)
    monkeypatch.setattr(catalogues, "ask", away)
    read = catalogues.gathered(plain, 1.0)
    config = catalogues.completed_by(plain, read, 1.0)
    catalogues.keep(path_of(plain, plain.clouds[0]), Catalogue(cloud="aws", at=1.0, types=()))

    (finding,) = doctor.examine(config.clouds[0], plan.pools_of(config), read["aws"], 1.0)
    assert finding.observed == "Timeout: no answer"


def wait_for(event: threading.Event) -> None:
    assert event.wait(patience(60))


def test_the_keeper_asks_and_tells_of_another_catalogue(bed: AwsBed, tmp_path: Path) -> None:
    plain = config_of(bed, tmp_path, Requirements(cpus="4", max_types=1))
    changed = threading.Event()
    keeper = catalogues.CatalogueKeeper(plain, from_state(plain, time.time()), changed.set)
    keeper.start()
    wait_for(changed)
    keeper.join(patience(10))
    first = from_state(plain, time.time())
    (name,) = first.pools[0].type_names
    path = path_of(plain, plain.clouds[0])
    assert path.stat().st_mode & 0o777 == 0o600
    # A day later that type has become dear.
    bed.control.list_price(name, 9.0)
    found = kept(path)
    assert found is not None
    catalogues.keep(path, replace(found, at=found.at - 90_000))
    again = threading.Event()
    second = catalogues.CatalogueKeeper(plain, first, again.set)
    second.start()
    wait_for(again)
    second.join(patience(10))
    assert from_state(plain, time.time()).pools[0].type_names != (name,)


@pytest.mark.release
def test_a_cloud_that_is_away_keeps_its_catalogue(bed: AwsBed, tmp_path: Path) -> None:
    plain = config_of(bed, tmp_path, SOME)
    assert catalogues.refresh(plain, 1_800_000_000.0) == []
    bed.control.fail(Fault(kind=FaultKind.AUTH, action="GetProducts"))
    assert catalogues.refresh(plain, 1_800_000_000.0 + 3600) == []
    assert catalogues.refresh(plain, 1_800_000_000.0 + 90_000) == ["aws"]
    found = kept(path_of(plain, plain.clouds[0]))
    assert found is not None
    assert found.at == 1_800_000_000.0


@pytest.mark.release
def test_explain_tells_once_which_types_a_pool_is_bought_by(tmp_path: Path, bed: AwsBed) -> None:
    plain = config_of(bed, tmp_path, ("c5.xlarge",))
    catalogues.refresh(plain, time.time())
    ledger = Ledger(tmp_path / "ledger.db")
    for _ in range(2):
        catalogues.tell_used(from_state(plain, time.time()), ledger.decisions, time.time())
    (decision,) = ledger.decisions.about("pool:pub")
    assert decision.kind == catalogues.KIND
    assert "c5.xlarge (4 cpus, 8192 MiB, $0.17/h)" in str(decision.reason)
    ledger.close()


def test_flavors_are_types(tmp_path: Path) -> None:
    with StandIn().serving() as stand_in:
        bed = StackBed(stand_in, tmp_path)
        stand_in.world.page = 2
        types = {
            t.name: t
            for t in catalogues.ask(
                bed.settings(catalogue=True, api_timeout=patience(60)), 1.0
            ).types
        }
    assert (types["small"].cpus, types["small"].memory, types["small"].price) == (2, 4096, None)


def test_a_flavors_properties_tell_its_price_and_gpus() -> None:
    extra = {"slurm_elastic:price": "0.25", "pci_passthrough:alias": "gpu-a100:2,nic:1"}
    found = _known_type({"name": "C2 (old)", "vcpus": 8, "ram": 1024, "extra_specs": extra})
    assert (found.name, found.price, found.gres) == ("C2-old", 0.25, {"gpu": 2})
    assert found.own == {"flavor": "C2 (old)"}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneControl]:
    with running_one(tmp_path_factory.mktemp("one")) as running:
        yield running


def test_templates_are_types(one: OneControl, tmp_path: Path) -> None:
    bed = OneBed(one, tmp_path)
    types = {
        t.name: t
        for t in catalogues.ask(bed.settings(catalogue=True, api_timeout=patience(60)), 1.0).types
    }
    worker = types["worker"]
    assert (worker.cpus, worker.memory, worker.price) == (2, 4096, None)
    assert worker.own == {"template": 0}


def test_a_pool_of_templates_launches_by_the_catalogue(one: OneControl, tmp_path: Path) -> None:
    bed = OneBed(one, tmp_path)
    cloud = bed.settings(types={}, catalogue=True)
    pool = PoolSettings(
        name="op", cloud=cloud.name, nodes="op[1-2]", cpus=2, memory=4096,
        instance_types=Requirements(cpus="2"),
    )  # fmt: skip
    plain = Config(cluster=Cluster(name="site", uuid=UUID), clouds=(cloud,), pools=(pool,))
    config = catalogues.completed(replace(plain, state_dir=str(tmp_path)), time.time())
    provider = open_provider(config.clouds[0], config.cluster, config)
    (made,) = plan.pools_of(config)
    (offer,) = provider.offers(made)
    spec = LaunchSpec(generation="g1", pool=made, nodes=("op1",), offer=offer)
    assert [m.node for m in provider.launch(spec)] == ["op1"]


def test_a_catalogue_survives_its_file(tmp_path: Path, bed: AwsBed) -> None:
    found = catalogues.ask(bed.settings(catalogue=True), 5.0)
    catalogues.keep(tmp_path / "catalogue" / "aws.json", found)
    assert kept(tmp_path / "catalogue" / "aws.json") == found
    assert isinstance(found, Catalogue)
