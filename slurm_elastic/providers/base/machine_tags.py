"""The tags that say what a machine was bought as, and the machine that tags describe. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import ONE_ZONE, CloudSettings
from slurm_elastic.model.cluster import Instance, InstanceState, LaunchSpec
from slurm_elastic.policies.repair.list_plausibility import price_in
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
    RESERVATION,
    NodeNames,
    market_of,
    tags_of,
)

TYPE = PREFIX + "type"
ZONE = PREFIX + "zone"
MARKET = PREFIX + "market"
MADE = PREFIX + "made"
_SPELLED = (
    CLUSTER, NAME, CLOUD, POOL, GENERATION, TYPE, MARKET, JOBS, PRICE, RESERVATION, *OWNER.values(),
)  # fmt: skip


def bought(spec: LaunchSpec, nodes: Sequence[str], cluster: Cluster, cloud: str) -> dict[str, str]:
    """The tags of the machines for ``nodes``, with the type, zone and market that they are bought
    as.
    """
    offer = spec.offer
    purchase = {TYPE: offer.instance_type, ZONE: offer.zone, MARKET: offer.market.value}
    return tags_of(spec, nodes, cluster, cloud) | purchase


def marks_of(
    spec: LaunchSpec, node: str, cluster: Cluster, cloud: str, now: float
) -> dict[str, str]:
    """The tags of ``bought`` for a cloud that creates one machine per call. The call begins at
    ``now`` (Unix time).
    """
    return bought(spec, [node], cluster, cloud) | {MADE: f"{now:.0f}"}


def reservation_of(marks: Mapping[str, str], kind: str, settings: CloudSettings) -> str:
    """The reservation that a machine of this type uses, "" if none. Tags can be edited in the
    cloud, and a machine on a reservation may cost nothing in the caps, so only a reservation that
    the settings have for the type is believed.
    """
    name = marks.get(RESERVATION, "")
    held = settings.held if name else ()
    return name if any(h.name == name and h.instance_type in ("", kind) for h in held) else ""


def machine_of(
    machine_id: str, marks: Mapping[str, str], settings: CloudSettings, state: InstanceState,
    address: str | None, **fields: Any,  # noqa: ANN401
) -> Instance:  # fmt: skip
    """The machine with this id and these tags. Tags can be edited in the cloud, so a missing or
    senseless tag raises no error. ``fields`` are what the cloud itself reports; they replace what
    the tags say.
    """
    kind, made_at = marks.get(TYPE, ""), marks.get(MADE, "")
    price = price_in(marks.get(PRICE))
    machine = Instance(
        id=machine_id,
        cloud=settings.name,
        # Each call made one machine, so its node is the first and only one in the list.
        node=NodeNames().node(marks, 0),
        generation=marks.get(GENERATION, ""),
        instance_type=kind,
        zone=marks.get(ZONE, ONE_ZONE),
        market=market_of(marks.get(MARKET, "")),
        price=price or 0.0,
        is_price_known=price is not None,
        state=state,
        # The tag can be edited in the cloud. A cloud that reports the time itself gives it in
        # ``fields``.
        launched=float(made_at) if made_at.isdecimal() else 0.0,
        address=address,
        reservation=reservation_of(marks, kind, settings),
    )
    return replace(machine, **fields)


class Spelling(Struct, frozen=True):
    """Tag keys for a cloud that creates one machine per call and does not allow keys like ours."""

    key: Callable[[str], str]

    @property
    def node(self) -> str:
        """The key of the tag that holds the node."""
        return self.key(f"{PREFIX}node")

    def written(self, spec: LaunchSpec, node: str, cluster: Cluster, cloud: str) -> dict[str, str]:
        """The tags of the machine for ``node``."""
        marks = bought(spec, [node], cluster, cloud)
        return {self.key(k): marks[k] for k in _SPELLED if k in marks} | {self.node: node}

    def read(self, tags: Mapping[str, str]) -> dict[str, str]:
        """Translate a machine's tags to our keys. Foreign keys stay as they are."""
        our_keys = {self.key(k): k for k in _SPELLED} | {self.node: NODES}
        return {our_keys.get(key, key): value for key, value in tags.items()}
