"""The tags of EC2's machines beyond those of all clouds (``providers/base/tags.py``): a fleet's
prices and places. Pure.

EC2 bounds a tag's value at 256 characters and a resource at 50 tags.

``AmiLaunchIndex`` counts the machines of one type in one zone, so in a fleet it does not tell them
apart. The machine's place in the launch's list of nodes is therefore tagged, after the launch,
digit by digit: ``slurm-elastic:place-0`` is the first digit, and so on for the
``slurm-elastic:places`` digits that the launch's own tags announce. One call gives all machines
with a digit theirs, so 1000 machines take 30 calls instead of 1000. A machine that lacks a digit
has no place yet: it waits (boothook), and it ends itself if none comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.providers.base.tags import PREFIX, PRICE, NodeNames, gathered, spread, tags_of

MAX_NODE_TAGS = 16
SITE_TAGS = 16
"""EC2 allows 50 tags: 10 are ours for a start, with the account and user of a job, and a fleet's
prices and places take another 8 at most; the site's own launch template may have these.
"""
PRICES = PREFIX + "prices"
"""A fleet's prices: ``TYPE@ZONE=PRICE`` for each of its offers; more in ``prices-1`` and so on."""
PLACES = PREFIX + "places"
PLACE = PREFIX + "place-"


def fleet_tags(
    spec: LaunchSpec, nodes: Sequence[str], cluster: Cluster, cloud: str
) -> dict[str, str]:
    """As ``tags_of``, but a price for each offer, and how many digits a place has."""
    tags = tags_of(spec, nodes, cluster, cloud)
    del tags[PRICE]
    prices = [f"{o.instance_type}@{o.zone}={o.price:g}" for o in spec.offers]
    return {**tags, **spread(PRICES, prices), PLACES: str(width(len(nodes)))}


def price_text(tags: Mapping[str, str], instance_type: str, zone: str) -> str | None:
    """The price at which a machine of that type and zone was bought ($/h), as its tags have it;
    None if they do not say.
    """
    if PRICE in tags:
        return tags[PRICE]
    pairs = (item.rpartition("=") for item in " ".join(gathered(tags, PRICES)).split())
    return {key: price for key, _, price in pairs}.get(f"{instance_type}@{zone}")


class FleetNodeNames(NodeNames):
    """As NodeNames, where a fleet's machines have their places by tags."""

    def node(self, tags: Mapping[str, str], index: int) -> str:
        """As NodeNames.node; of a fleet's machine ``index`` says nothing, and its tags may not
        tell yet.
        """
        if in_fleet(tags):
            place = place_of(tags)
            index = -1 if place is None else place
        return super().node(tags, index)


def width(count: int) -> int:
    """How many digits the places of so many nodes have."""
    return len(str(max(count - 1, 0)))


def place_of(tags: Mapping[str, str]) -> int | None:
    """The place that the tags of a fleet's machine give it; None while one is missing."""
    text = tags.get(PLACES, "")
    count = int(text) if text.isascii() and text.isdigit() and len(text) == 1 else 0
    digits = "".join(tags.get(f"{PLACE}{n}", "?") for n in range(count))
    return int(digits) if digits.isascii() and digits.isdigit() else None


def in_fleet(tags: Mapping[str, str]) -> bool:
    """Whether the machine's place is told by tags and not by its launch index."""
    return PLACES in tags


def assigned(
    ids: Iterable[str], taken: Mapping[str, int], count: int
) -> tuple[dict[str, int], list[str]]:
    """Places for those of ``ids`` that have none in ``taken``; and the ids for which there is none,
    as there are only ``count``.
    """
    free = sorted(set(range(count)) - set(taken.values()))
    # In order: a launch that is repeated, after an answer or a part of the tags was lost, gives
    # each machine the place that it has or was meant to have.
    waiting = sorted(set(ids) - set(taken))
    return dict(zip(waiting, free, strict=False)), waiting[len(free) :]


def tagging(places: Mapping[str, int], count: int) -> Iterator[tuple[str, str, Sequence[str]]]:
    """The calls that tag ``places`` of so many nodes: key, value, and the ids that get it."""
    for n in range(width(count)):
        by_digit: dict[str, list[str]] = {}
        for id_, place in places.items():
            by_digit.setdefault(str(place).zfill(width(count))[n], []).append(id_)
        for digit, some in sorted(by_digit.items()):
            yield f"{PLACE}{n}", digit, some
