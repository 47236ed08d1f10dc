"""The tags of a cloud that takes one machine a call, and a machine as they tell of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import ONE_ZONE, CloudSettings
from slurm_elastic.model.cluster import Instance, InstanceState, LaunchSpec
from slurm_elastic.providers.base.tags import (
    GENERATION,
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


def marks_of(
    spec: LaunchSpec, node: str, cluster: Cluster, cloud: str, now: float
) -> dict[str, str]:
    """The tags of the machine for ``node``, whose call begins ``now`` (Unix time)."""
    offer = spec.offer
    bought = {TYPE: offer.instance_type, ZONE: offer.zone, MARKET: offer.market.value}
    return tags_of(spec, [node], cluster, cloud) | bought | {MADE: f"{now:.0f}"}


def machine_of(
    number: str, marks: Mapping[str, str], settings: CloudSettings, state: InstanceState,
    address: str | None,
) -> Instance:  # fmt: skip
    """The machine with that id and these tags, of which any may have been changed by somebody."""
    kind, made = marks.get(TYPE, ""), marks.get(MADE, "")
    return Instance(
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
