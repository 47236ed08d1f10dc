"""The tags that say what a machine was bought as, and a machine as its tags tell of it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import ONE_ZONE, CloudSettings
from slurm_elastic.model.cluster import Instance, InstanceState, LaunchSpec
from slurm_elastic.providers.base.tags import (
    CLOUD,
    CLUSTER,
    GENERATION,
    JOBS,
    NAME,
    NODES,
    OWNER,
    POOL,
    PREFIX,
    PRICE,
    NodeNames,
    market_of,
    price_of,
    tags_of,
)

TYPE = PREFIX + "type"
ZONE = PREFIX + "zone"
MARKET = PREFIX + "market"
MADE = PREFIX + "made"
_SPELLED = (CLUSTER, NAME, CLOUD, POOL, GENERATION, TYPE, MARKET, JOBS, PRICE, *OWNER.values())


def bought(spec: LaunchSpec, nodes: Sequence[str], cluster: Cluster, cloud: str) -> dict[str, str]:
    """The tags of the machines for ``nodes``, with what each is bought as."""
    offer = spec.offer
    told = {TYPE: offer.instance_type, ZONE: offer.zone, MARKET: offer.market.value}
    return tags_of(spec, nodes, cluster, cloud) | told


def marks_of(
    spec: LaunchSpec, node: str, cluster: Cluster, cloud: str, now: float
) -> dict[str, str]:
    """The same for a cloud that takes one machine a call, which begins ``now`` (Unix time)."""
    return bought(spec, [node], cluster, cloud) | {MADE: f"{now:.0f}"}


def machine_of(
    number: str, marks: Mapping[str, str], settings: CloudSettings, state: InstanceState,
    address: str | None, **told: Any,  # noqa: ANN401
) -> Instance:  # fmt: skip
    """The machine with that id and these tags, of which any may have been changed by somebody. What
    its cloud has ``told`` goes over them.
    """
    kind, made = marks.get(TYPE, ""), marks.get(MADE, "")
    machine = Instance(
        id=number,
        cloud=settings.name,
        node=NodeNames().node(marks, 0),
        generation=marks.get(GENERATION, ""),
        instance_type=kind,
        zone=marks.get(ZONE, ONE_ZONE),
        market=market_of(marks.get(MARKET, "")),
        price=price_of(marks.get(PRICE), kind, settings.shapes),
        state=state,
        launched=float(made) if made.isdecimal() else 0.0,
        address=address,
    )
    return replace(machine, **told)


class Spelling(Struct, frozen=True):
    """The keys of a cloud that takes one machine a call and allows no such keys as ours."""

    key: Callable[[str], str]

    @property
    def node(self) -> str:
        """The key of the one node."""
        return self.key(f"{PREFIX}node")

    def written(self, spec: LaunchSpec, node: str, cluster: Cluster, cloud: str) -> dict[str, str]:
        """The tags of the machine for ``node``."""
        marks = bought(spec, [node], cluster, cloud)
        return {self.key(k): marks[k] for k in _SPELLED if k in marks} | {self.node: node}

    def read(self, tags: Mapping[str, str]) -> dict[str, str]:
        """The same tags with our keys; others as they are."""
        ours = {self.key(k): k for k in _SPELLED} | {self.node: NODES}
        return {ours.get(key, key): value for key, value in tags.items()}
