"""Tags of EC2's machines beyond those of all clouds (``providers/base/tags.py``): a fleet's prices
and places. Pure.

EC2 limits a tag's value to 256 characters, and a resource to 50 tags.

``AmiLaunchIndex`` counts the machines of one type in one zone, so in a fleet it is not unique.
Therefore a machine's place in the launch's list of nodes is tagged after the launch, digit by
digit: ``slurm-elastic:place-0`` is the first digit, and so on. The launch's own tag
``slurm-elastic:places`` says how many digits there are. One call tags all machines that share a
digit, so 1000 machines take 30 calls instead of 1000. A machine that lacks a digit has no place
yet. It waits (boothook), and ends itself if the digit does not come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.providers.base.tags import PREFIX, PRICE, NodeNames, gathered, spread, tags_of

MAX_NODE_TAGS = 16
SITE_TAGS = 16
"""EC2 allows 50 tags. Eleven are ours from the start, including account and user of a job, and a
fleet's prices and places take at most 8 more. The site's own launch template may use this many.
"""
PRICES = PREFIX + "prices"
"""The prices of a fleet: ``TYPE@ZONE=PRICE`` for each offer, continued in ``prices-1`` and
so on.
"""
PLACES = PREFIX + "places"
PLACE = PREFIX + "place-"


def fleet_tags(
    spec: LaunchSpec, nodes: Sequence[str], cluster: Cluster, cloud: str
) -> dict[str, str]:
    """The tags of ``tags_of``, but with a price for each offer and the number of digits of
    a place.
    """
    tags = tags_of(spec, nodes, cluster, cloud)
    del tags[PRICE]
    prices = [f"{o.instance_type}@{o.zone}={o.price:g}" for o in spec.offers]
    return {**tags, **spread(PRICES, prices), PLACES: str(width(len(nodes)))}


def price_text(tags: Mapping[str, str], instance_type: str, zone: str) -> str | None:
    """The price at which a machine of this type and zone was bought ($/h), from its tags. None if
    they do not say it.
    """
    if PRICE in tags:
        return tags[PRICE]
    pairs = (item.rpartition("=") for item in " ".join(gathered(tags, PRICES)).split())
    return {key: price for key, _, price in pairs}.get(f"{instance_type}@{zone}")


class FleetNodeNames(NodeNames):
    """NodeNames for machines of fleets as well, whose places are in tags."""

    def node(self, tags: Mapping[str, str], index: int) -> str:
        """The node of a machine. ``index`` has no meaning in a fleet. The node is empty while the
        machine's tags lack its place.
        """
        if in_fleet(tags):
            place = place_of(tags)
            index = -1 if place is None else place
        return super().node(tags, index)


def width(count: int) -> int:
    """The number of digits of a place among ``count`` nodes."""
    return len(str(max(count - 1, 0)))


def place_of(tags: Mapping[str, str]) -> int | None:
    """The place in the tags of a fleet's machine. None while a digit is missing."""
    text = tags.get(PLACES, "")
    count = int(text) if text.isascii() and text.isdigit() and len(text) == 1 else 0
    digits = "".join(tags.get(f"{PLACE}{n}", "?") for n in range(count))
    return int(digits) if digits.isascii() and digits.isdigit() else None


def in_fleet(tags: Mapping[str, str]) -> bool:
    """Whether the machine's place is in its tags, not in its launch index."""
    return PLACES in tags


def assigned(
    ids: Iterable[str], taken_places: Mapping[str, int], count: int
) -> tuple[dict[str, int], list[str]]:
    """Places for the ``ids`` missing from ``taken_places``; and the ids for which no place is left,
    because there are only ``count``.
    """
    free = sorted(set(range(count)) - set(taken_places.values()))
    # Sorted: if a launch is repeated after an answer or some of the tags were lost, each machine
    # must get the place that it has or was meant to have.
    waiting = sorted(set(ids) - set(taken_places))
    return dict(zip(waiting, free, strict=False)), waiting[len(free) :]


def tagging(places: Mapping[str, int], count: int) -> Iterator[tuple[str, str, Sequence[str]]]:
    """The calls that tag ``places`` among ``count`` nodes: key, value, and the ids that get the
    tag.
    """
    for n in range(width(count)):
        by_digit: dict[str, list[str]] = {}
        for id_, place in places.items():
            by_digit.setdefault(str(place).zfill(width(count))[n], []).append(id_)
        for digit, id_group in sorted(by_digit.items()):
            yield f"{PLACE}{n}", digit, id_group
