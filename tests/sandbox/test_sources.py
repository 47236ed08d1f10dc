"""Which machines the runner runs: those of the emulators, and of any other cloud that lists its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config.basics.metadata_service import AZURE, MetadataService
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.cluster import Instance, InstanceState, Location, Market
from slurm_elastic.sandbox import sources


class MistCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="mist"):
    """A cloud of another package."""

    by_user_data: ClassVar[bool] = True


class OldCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="old"):
    """A cloud whose machines start without user data."""


class HostsCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="hosts"):
    """A cloud of virtual machines on the site's hosts."""

    by_user_data: ClassVar[bool] = True
    zones_are_hosts: ClassVar[bool] = True


KINDS = {"mist": MistCloud, "old": OldCloud, "hosts": HostsCloud}


class Table:
    def kind(self, name: str) -> Any:
        if name not in KINDS:
            raise ConfigError(f"{name} cannot be used")
        return SimpleNamespace(settings=KINDS[name])


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "table", Table)


@pytest.mark.parametrize(
    ("providers", "is_needed"),
    [
        (["aws"], True), (["old", "opennebula"], True), (["mist"], True), (["old"], False),
        (["hosts"], False), (["unusable"], False), ([], False),
    ],
)  # fmt: skip
def test_a_runner_runs_machines_that_join_by_user_data(
    providers: list[str], *, is_needed: bool
) -> None:
    assert sources.needs_runner(providers) is is_needed


def test_a_cloud_of_another_package_is_asked_by_its_own_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def machine(node: str, state: InstanceState) -> Instance:
        return Instance(
            id=f"{node}-7f", cloud="m", node=node, generation="g1", instance_type="t", zone="z",
            market=Market.SPOT, price=0.1, launched=5.0, state=state,
        )  # fmt: skip

    machines = [machine("n1", InstanceState.RUNNING), machine("n2", InstanceState.STOPPING)]
    clouds = [cls(name=name, location=Location.PUBLIC) for name, cls in KINDS.items()]
    config = SimpleNamespace(clouds=clouds, cluster=None)
    provider = SimpleNamespace(instances=lambda: machines)
    monkeypatch.setattr(sources, "open_provider", lambda *_: provider)
    monkeypatch.setattr(sources.configfile, "load", lambda _: config)
    monkeypatch.setattr(sources, "cloud_of", lambda *_: None)
    layout: Any = SimpleNamespace(config=Path(__file__))
    saved: Any = SimpleNamespace(spec=None)
    ((prefix, look),) = sources.sources(layout, saved)
    assert prefix == "mist=mist="
    assert [(m.id, m.node, m.state, m.generation) for m in look()] == [
        ("mist=mist=n1-7f", "n1", "running", "g1"), ("mist=mist=n2-7f", "n2", "off", "g1"),
    ]  # fmt: skip


def test_a_site_without_slurm_elastic_has_the_machines_of_its_emulators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration is written later, by ``init``."""
    layout: Any = SimpleNamespace(config=tmp_path / "slurm-elastic.yaml")
    monkeypatch.setattr(sources, "cloud_of", lambda *_: None)
    assert [*sources.sources(layout, SimpleNamespace(spec=None))] == []  # type: ignore[arg-type]


class WarningCloud(MistCloud, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="warns"):
    """A cloud with Azure's warnings, at an endpoint of this host."""

    endpoint: str = "http://127.0.0.1:5000/"

    @property
    def metadata(self) -> MetadataService:
        return AZURE


def test_a_machine_ends_itself_and_reads_its_own_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "warns", WarningCloud)
    cloud = WarningCloud(name="w", location=Location.PUBLIC)
    assert sources._metadata_of(cloud, "n1-7f") == (
        "azure http://127.0.0.1:5000/machines/n1-7f/metadata/"
    )
    assert sources._metadata_of(MistCloud(name="m", location=Location.PUBLIC), "n1-7f") == ""
    ended: list[str] = []
    config = SimpleNamespace(clouds=[cloud], cluster=None)
    monkeypatch.setattr(sources.configfile, "load", lambda _: config)
    provider = SimpleNamespace(terminate=ended.extend)
    monkeypatch.setattr(sources, "open_provider", lambda *_: provider)
    layout: Any = SimpleNamespace(config=tmp_path)
    assert sources.end(layout, "warns=w=n1-7f")
    assert not sources.end(layout, "warns=other=n1-7f")
    assert not sources.end(layout, "i-1")
    assert ended == ["n1-7f"]
