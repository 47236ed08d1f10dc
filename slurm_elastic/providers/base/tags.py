"""The tags of every machine, which say what cluster it belongs to and which node it serves.

All machines of one launch call get the same tags. Therefore one tag holds the list of the launch's
nodes in order. The cloud numbers the machines of a call, which gives each machine its place in the
list. Clouds that create one machine per call need no list; they spell their tags themselves. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import LaunchSpec, Market

PREFIX = "slurm-elastic:"
CLUSTER = PREFIX + "cluster"
NAME = PREFIX + "cluster-name"
CLOUD = PREFIX + "cloud"
POOL = PREFIX + "pool"
GENERATION = PREFIX + "generation"
NODES = PREFIX + "nodes"
JOBS = PREFIX + "jobs"
PRICE = PREFIX + "price"
RESERVATION = PREFIX + "reservation"
OWNER = {"account": PREFIX + "account", "user": PREFIX + "user"}

MAX_VALUE = 256
"""The longest value of a tag in EC2 (characters). Clouds with a smaller limit cut values further.
"""
_TAIL = re.compile(r"(.*?)(\d{1,15})")
_ALONE = re.compile(r"\[(\d+)\]")


def tags_of(spec: LaunchSpec, nodes: Sequence[str], cluster: Cluster, cloud: str) -> dict[str, str]:
    """The tags of the machines for ``nodes``, which are all or some of ``spec.nodes``."""
    values = {
        "Name": f"{cluster.name} {spec.pool.name}",
        CLUSTER: cluster.uuid or "",
        NAME: cluster.name,
        CLOUD: cloud,
        POOL: spec.pool.name,
        GENERATION: spec.generation,
        PRICE: f"{spec.offer.price:g}",
    }
    if spec.offer.held is not None:
        values[RESERVATION] = spec.offer.held.name
    if spec.jobs:
        values[JOBS] = _jobs(spec.jobs)
    values |= {OWNER[key]: value for key, value in spec.owner.items()}
    # EC2 refuses the whole launch if a single tag is too long.
    return {key: value[:MAX_VALUE] for key, value in values.items()} | node_tags(nodes)


def spread(key: str, items: Iterable[str]) -> dict[str, str]:
    """Distribute items over as many tags as they need."""
    values: list[str] = []
    for item in items:
        if values and len(values[-1]) + 1 + len(item) <= MAX_VALUE:
            values[-1] += f" {item}"
        else:
            values.append(item)
    return {key if n == 0 else f"{key}-{n}": value for n, value in enumerate(values)}


def gathered(tags: Mapping[str, str], key: str) -> list[str]:
    """The values of ``key``, ``key-1`` and so on."""
    values = [tags.get(key, "")]
    while (value := tags.get(f"{key}-{len(values)}")) is not None:
        values.append(value)
    return values


def node_tags(nodes: Sequence[str], max_chars: int = MAX_VALUE) -> dict[str, str]:
    """The tags of a list of nodes: ``slurm-elastic:nodes`` and, if the list does not fit,
    ``slurm-elastic:nodes-1`` and so on.
    """
    values = in_order(nodes, max_chars)
    return {NODES if n == 0 else f"{NODES}-{n}": value for n, value in enumerate(values)}


def nodes_text(tags: Mapping[str, str]) -> str:
    """The hostlist that ``node_tags`` distributed over several tags."""
    return ",".join(hostlist for hostlist in gathered(tags, NODES) if hostlist)


class NodeNames:
    """Finds the nodes of many machines and expands each hostlist once."""

    def __init__(self) -> None:
        self._lists: dict[str, list[str]] = {}

    def node(self, tags: Mapping[str, str], index: int) -> str:
        """The node of the machine with number ``index`` in its launch; empty if the tags do not say
        it.
        """
        text = nodes_text(tags)
        if text not in self._lists:
            self._lists[text] = expanded(text)
        names = self._lists[text]
        return names[index] if 0 <= index < len(names) else ""


def in_order(nodes: Iterable[str], max_chars: int) -> list[str]:
    """Hostlists of at most ``max_chars`` characters that expand to exactly ``nodes``, in the same
    order.

    ``base.hostlist.compress`` would sort them, but a machine is identified by its place in the
    list.
    """
    hostlists: list[str] = []
    open_prefix = ""
    for prefix, piece in _pieces(nodes):
        last_list = hostlists[-1] if hostlists else ""
        if prefix and prefix == open_prefix and len(last_list) + 1 + len(piece) <= max_chars:
            hostlists[-1] = f"{last_list[:-1]},{piece}]"
            continue
        item = f"{prefix}[{piece}]" if prefix else piece
        open_prefix = prefix
        if last_list and len(last_list) + 1 + len(item) <= max_chars:
            hostlists[-1] = f"{last_list},{item}"
        else:
            hostlists.append(item)
    return [_ALONE.sub(r"\1", text) for text in hostlists]


def _pieces(nodes: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Runs of consecutive names as (prefix, ``low-high``); a name without a number as ("",
    name).
    """
    prefix = low = high = ""
    for name in nodes:
        match = _TAIL.fullmatch(name)
        if match and match[1] == prefix and high and _next(low, high) == match[2]:
            high = match[2]
            continue
        if high:
            yield prefix, low if low == high else f"{low}-{high}"
        prefix, low, high = (match[1], match[2], match[2]) if match else ("", "", "")
        # A bare number has no prefix for a bracket, so it stands alone.
        if not match or not prefix:
            high = ""
            yield "", name
    if high:
        yield prefix, low if low == high else f"{low}-{high}"


def _next(low: str, high: str) -> str:
    """The number after ``high``, padded as in a range that begins with ``low``."""
    return str(int(high) + 1).zfill(len(low))


def expanded(text: str) -> list[str]:
    """The names of a hostlist in order; an empty list if an edited tag makes no sense."""
    try:
        return expand(text) if text else []
    except HostlistError:
        return []


def _jobs(jobs: Iterable[int]) -> str:
    """As many job ids as fit into a tag."""
    text = ""
    for job in jobs:
        longer = f"{text},{job}" if text else str(job)
        if len(longer) > MAX_VALUE:
            break
        text = longer
    return text


_GENERATION = re.compile(r"g([0-9]{13})-")


def decided_at(generation: str) -> float:
    """The time at which a launch was decided (Unix time), taken from its generation; 0 if it is not
    in there.
    """
    match = _GENERATION.match(generation)
    return int(match[1]) / 1000 if match else 0.0


def market_of(tag: str) -> Market:
    """The market that a tag names; reserved if the tag was changed."""
    return Market(tag) if tag in set(Market) else Market.RESERVED
