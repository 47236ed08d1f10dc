"""The contract of a list that lacks a zone finds a provider that takes such a list for whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from slurm_elastic.base.errors import TransientError
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import (
    EndAnswer,
    Instance,
    InstanceState,
    LaunchSpec,
    Location,
    Market,
    Offer,
    Pool,
)
from slurm_elastic.providers.base.offers import typed_offer
from slurm_elastic.testing.contract import ZonedContract

KIND = InstanceType(cpus=1, memory=1, price=0.1)


class Mist:
    """A provider of machines in one zone. ``is_careful``: it reports a list without that zone."""

    name = "mist"

    def __init__(self, bed: ZoneBed) -> None:
        self.bed = bed

    def offers(self, pool: Pool) -> Sequence[Offer]:
        del pool
        return [typed_offer(("mist", Location.PUBLIC), "t", KIND, "a", Market.SPOT)]

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        for node in spec.nodes:
            self.bed.machines[f"i-{node}"] = Instance(
                id=f"i-{node}", cloud="mist", node=node, generation="g1", instance_type="t",
                zone="a", market=Market.SPOT, price=0.1, launched=0.0, state=InstanceState.RUNNING,
            )  # fmt: skip
        return list(self.bed.machines.values())

    def instances(self) -> Sequence[Instance]:
        if self.bed.silent and self.bed.is_careful:
            raise TransientError("mist", "UNREACHABLE", f"zone {self.bed.silent} did not answer")
        return [m for m in self.bed.machines.values() if m.zone != self.bed.silent]

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        listed = {m.id for m in self.instances()}
        return {i: EndAnswer.ENDED if i in listed else EndAnswer.GONE for i in ids}


class ZoneBed:
    pool = Pool(name="p", cloud="mist", nodes=("n1", "n2"), cpus=1, real_memory=1)

    def __init__(self, *, is_careful: bool) -> None:
        self.is_careful, self.silent = is_careful, ""
        self.machines: dict[str, Instance] = {}

    def open(self, *_: object, **__: object) -> Any:
        return Mist(self)

    def silence(self, zone: str) -> None:
        self.silent = zone

    def heal(self) -> None:
        self.silent = ""


def test_a_provider_that_reports_the_missing_zone_keeps_the_contract() -> None:
    bed: Any = ZoneBed(is_careful=True)
    ZonedContract().test_a_list_without_a_zone_is_an_error(bed)


def test_a_provider_that_takes_the_list_for_whole_breaks_it() -> None:
    bed: Any = ZoneBed(is_careful=False)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        ZonedContract().test_a_list_without_a_zone_is_an_error(bed)
