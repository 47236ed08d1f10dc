"""The tags that every machine carries, and what they say: whose it is, and which node.

A launch of many machines gives all of them the same tags, so the tag holds the list of the
launch's nodes, in order; the cloud numbers the machines of a call, which gives each its place in
it. Clouds that take one machine a call have no need of lists and spell their tags themselves. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import LaunchSpec, Market
from slurm_elastic.policies.repair.list_plausibility import price_in

PREFIX = "slurm-elastic:"
CLUSTER = PREFIX + "cluster"
NAME = PREFIX + "cluster-name"
CLOUD = PREFIX + "cloud"
POOL = PREFIX + "pool"
GENERATION = PREFIX + "generation"
NODES = PREFIX + "nodes"
JOBS = PREFIX + "jobs"
PRICE = PREFIX + "price"
OWNER = {"account": PREFIX + "account", "user": PREFIX + "user"}

MAX_VALUE = 256
"""The longest value that a tag of EC2 may have (characters); other clouds' are cut further."""
_TAIL = re.compile(r"(.*?)(\d{1,15})")
_ALONE = re.compile(r"\[(\d+)\]")


def tags_of(spec: LaunchSpec, nodes: Sequence[str], cluster: Cluster, cloud: str) -> dict[str, str]:
    """The tags of the machines for ``nodes``, which are ``spec.nodes`` or a part of them."""
    values = {
        "Name": f"{cluster.name} {spec.pool.name}",
        CLUSTER: cluster.uuid or "",
        NAME: cluster.name,
        CLOUD: cloud,
        POOL: spec.pool.name,
        GENERATION: spec.generation,
        PRICE: f"{spec.offer.price:g}",
    }
    if spec.jobs:
        values[JOBS] = _jobs(spec.jobs)
    values |= {OWNER[key]: value for key, value in spec.owner.items()}
    return {key: value[:MAX_VALUE] for key, value in values.items()} | node_tags(nodes)


def spread(key: str, items: Iterable[str]) -> dict[str, str]:
    """Items over as many tags as they need."""
    values: list[str] = []
    for item in items:
        if values and len(values[-1]) + 1 + len(item) <= MAX_VALUE:
            values[-1] += f" {item}"
        else:
            values.append(item)
    return {key if n == 0 else f"{key}-{n}": value for n, value in enumerate(values)}


def gathered(tags: Mapping[str, str], key: str) -> list[str]:
    """The values of ``key``, ``key-1`` and so on."""
    parts = [tags.get(key, "")]
    while (more := tags.get(f"{key}-{len(parts)}")) is not None:
        parts.append(more)
    return parts


def node_tags(nodes: Sequence[str], max_chars: int = MAX_VALUE) -> dict[str, str]:
    """``slurm-elastic:nodes`` and, where that is full, ``slurm-elastic:nodes-1`` and so on."""
    values = in_order(nodes, max_chars)
    return {NODES if n == 0 else f"{NODES}-{n}": value for n, value in enumerate(values)}


def nodes_text(tags: Mapping[str, str]) -> str:
    """The hostlist that ``node_tags`` spread over several tags."""
    return ",".join(part for part in gathered(tags, NODES) if part)


class NodeNames:
    """Reads the node of each of many machines, each hostlist once."""

    def __init__(self) -> None:
        self._lists: dict[str, list[str]] = {}

    def node(self, tags: Mapping[str, str], index: int) -> str:
        """The node of the ``index``-th machine of a launch; empty where the tags do not tell."""
        text = nodes_text(tags)
        if text not in self._lists:
            self._lists[text] = expanded(text)
        names = self._lists[text]
        return names[index] if 0 <= index < len(names) else ""


def in_order(nodes: Iterable[str], max_chars: int) -> list[str]:
    """Hostlists of at most ``max_chars`` that expand to exactly ``nodes``, in their order.

    Unlike ``base.hostlist.compress`` nothing is sorted: the place in the list is what tells
    machines apart.
    """
    out: list[str] = []
    open_prefix = ""
    for prefix, piece in _pieces(nodes):
        last = out[-1] if out else ""
        if prefix and prefix == open_prefix and len(last) + 1 + len(piece) <= max_chars:
            out[-1] = f"{last[:-1]},{piece}]"
            continue
        item = f"{prefix}[{piece}]" if prefix else piece
        open_prefix = prefix
        if last and len(last) + 1 + len(item) <= max_chars:
            out[-1] = f"{last},{item}"
        else:
            out.append(item)
    return [_ALONE.sub(r"\1", text) for text in out]


def _pieces(nodes: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Runs of consecutive names as (prefix, ``low-high``); a name without number as ("", name)."""
    prefix = low = high = ""
    for name in nodes:
        match = _TAIL.fullmatch(name)
        if match and match[1] == prefix and high and _next(low, high) == match[2]:
            high = match[2]
            continue
        if high:
            yield prefix, low if low == high else f"{low}-{high}"
        prefix, low, high = (match[1], match[2], match[2]) if match else ("", "", "")
        if not match or not prefix:
            high = ""
            yield "", name
    if high:
        yield prefix, low if low == high else f"{low}-{high}"


def _next(low: str, high: str) -> str:
    """The number after ``high`` as a range that begins with ``low`` would write it."""
    return str(int(high) + 1).zfill(len(low))


def expanded(text: str) -> list[str]:
    """The names of a hostlist in their order; none of one that somebody has spoilt."""
    try:
        return expand(text) if text else []
    except HostlistError:
        return []


def _jobs(jobs: Iterable[int]) -> str:
    """Job ids, as many as a tag holds."""
    text = ""
    for job in jobs:
        longer = f"{text},{job}" if text else str(job)
        if len(longer) > MAX_VALUE:
            break
        text = longer
    return text


_GENERATION = re.compile(r"g([0-9]{13})-")


def decided(generation: str) -> float:
    """When a launch was decided (Unix time), by its name; 0 where that does not tell."""
    match = _GENERATION.match(generation)
    return int(match[1]) / 1000 if match else 0.0


def market_of(word: str) -> Market:
    """The market that a tag names; reserved where somebody changed it."""
    return Market(word) if word in set(Market) else Market.RESERVED


def price_of(tag: str | None, kind: str, types: Mapping[str, InstanceType]) -> float:
    """The price at which a machine was started ($/h): as its tag says; where that was taken away or
    makes no sense, what the configuration says now. For a type that it lacks, the dearest: limits
    must not count too little.
    """
    told = price_in(tag)
    if told is not None:
        return told
    if kind in types:
        return types[kind].price
    return max((known.price for known in types.values()), default=0.0)
