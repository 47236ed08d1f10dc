"""The configuration that follows from a site, its clouds and the answers, with comments. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import yaml
from msgspec import convert
from msgspec.structs import replace

from slurm_elastic.base.units import format_duration, format_size
from slurm_elastic.config.found import Found
from slurm_elastic.config.requirements import KnownType, Requirements, Shape, lacks
from slurm_elastic.model.cluster import Location
from slurm_elastic.setup.questions import Answers
from slurm_elastic.setup.site import Facts

NODES = 8  # nodes of each pool: a start
REHEARSAL = Found(
    name="rehearsal", provider="fake", location=Location.PUBLIC, usable=True,
    what="a cloud in memory, as none can be reached",
)  # fmt: skip


def compose(site: Facts, found: Sequence[Found], given: Answers) -> str:
    clouds = chosen(found, given)
    lines = [
        f"# Made by `slurm-elastic init` from {site.conf}. docs/configuration.md has all keys.",
        f"cluster: {{name: {site.cluster}}}",
        f"slurm: {{conf: {site.conf}, user: {site.user}}}",
        *_who(site, given),
        *_money(given),
        *_join(given, clouds),
        *_checkpoint(given),
        "",
        "clouds:",
        *(line for one in clouds for line in cloud_lines(one, given)),
        *_not_usable(found),
        "",
        "pools:",
        *(line for one in clouds for line in pool_lines(one, site, given)),
    ]
    return "\n".join(lines) + "\n"


def chosen(found: Sequence[Found], given: Answers) -> tuple[Found, ...]:
    """The clouds of the answers; a cloud in memory where there is none."""
    return tuple(
        one for one in found
        if one.usable and one.name in given.clouds and (given.hosts or not one.by_node)
    ) or (REHEARSAL,)  # fmt: skip


def _who(site: Facts, given: Answers) -> Iterator[str]:
    yield ""
    yield "# Who may use the clouds, and for how long. Public ones stay shut while nobody is named."
    lists = {"accounts": given.accounts, "groups": given.groups}
    parts = [f"{key}: [{', '.join(names)}]" for key, names in lists.items() if names]
    if given.max_time is not None:
        parts.append(f"max_time: {format_duration(given.max_time)}")
    if given.max_time is not None and site.max_time is None and site.default_time is None:
        yield "# Jobs that name no time have no end: none starts in a cloud until this has a"
        yield "# default_time, such as default_time: 4h."
    yield f"who: {{{', '.join(parts)}}}"


def _money(given: Answers) -> Iterator[str]:
    if given.cap is None:
        yield "# limits: {dollars_per_hour: 5}    # the cap; public clouds stay shut without it"
    else:
        yield f"limits: {{dollars_per_hour: {given.cap:g}}}"


def _join(given: Answers, clouds: Sequence[Found]) -> Iterator[str]:
    if given.head and any(one.joins for one in clouds):
        yield f"join: {{head: {given.head}}}    # machines make themselves nodes: docs/joining.md"


def _checkpoint(given: Answers) -> Iterator[str]:
    if given.checkpoints:
        yield f"checkpoint: {{directory: {given.checkpoints}}}    # docs/checkpointing.md"


def cloud_lines(one: Found, given: Answers) -> Iterator[str]:
    yield f"  - name: {one.name}    # {one.what}"
    yield f"    provider: {one.provider}"
    yield f"    location: {one.location.value}"
    if one is REHEARSAL:
        size = f"{{cpus: {given.cpus}, memory: {format_size(given.memory)}, price: 0.1}}"
        yield f"    types: {{small: {size}}}    # replace this cloud by one of yours"
    for key, value in one.keys.items():
        yield f"    {key}: {flow(value)}{_COMMENTS.get(key, '')}"
    if one.by_node:
        yield f"    hosts: {flow(given.hosts)}"
    if one.sized:
        cpus, memory = node_of(one, given)
        size = f"{{cpus: {cpus}, memory: {format_size(memory)}, price: 0}}"
        yield f"    types: {{node: {size}}}    # price: power and depreciation, $/h"


def flow(value: object) -> str:
    """A value of YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=100000, sort_keys=False)
    return text.strip().removesuffix("...").strip()


def node_of(one: Found, given: Answers) -> tuple[int, int]:
    """The cpus and memory of its nodes: the answered ones, where a host of its has as much."""
    if not (one.sized and one.types):
        return given.cpus, given.memory
    cpus, memory = max((known.cpus, known.memory) for known in one.types)
    return min(given.cpus, cpus), min(given.memory, memory)


_COMMENTS = {
    "catalogue": "    # types and prices come from the cloud: docs/catalogues.md",
    "image": "    # the newest with slurm in its name, if there is one",
}


def pool_lines(one: Found, site: Facts, given: Answers) -> Iterator[str]:
    """An entry of ``pools``: nodes of the answered shape, by whatever types have it."""
    cpus, memory = node_of(one, given)
    yield f"  - name: {one.name}"
    yield f"    cloud: {one.name}"
    nodes = ",".join(given.hosts) if one.by_node else free_nodes(one.name, site)
    yield f"    nodes: {nodes}"
    less = (cpus, memory) != (given.cpus, given.memory)
    yield f"    cpus: {cpus}{'    # a host has no more for one' if less else ''}"
    yield f"    memory: {format_size(memory)}"
    if one.provider == "local":
        yield "    slurmd_port: 17000    # they share this host"
    if one.keys.get("catalogue"):
        yield f"    instance_types: {flow(wanted(one, cpus, memory))}"
    elif one.sized:
        yield "    instance_types: [node]"
    if one.spot:
        markets = "[spot, on-demand]" if given.spot else "[on-demand]"
        yield f"    markets: {markets}"


def wanted(one: Found, cpus: int, memory: int) -> dict[str, object]:
    """Requirements that the cloud's types meet: under twice a node; of one architecture; and such
    as are for batch work.
    """
    node = Shape(cpus=cpus, memory=memory, gres={})
    ranges: tuple[dict[str, object], ...] = ({"cpus": f"{cpus}..{2 * cpus}"}, {})
    archs: tuple[dict[str, object], ...] = ({"arch": "x86_64"}, {})
    for narrowed, range_, arch in product(({**one.narrowed}, {}), ranges, archs):
        asked = {**range_, **arch, **narrowed, "most": 20}
        asking = convert(asked, Requirements)
        if any(not lacks(_priced(known, one), asking, node) for known in one.types):
            return asked
    return {"most": 20}


def _priced(known: KnownType, one: Found) -> KnownType:
    """On-premises machines without a price cost nothing."""
    free = known.price is None and one.location is Location.ON_PREMISES
    return replace(known, price=0.0) if free else known


def free_nodes(cloud: str, site: Facts) -> str:
    """A hostlist whose names the site does not have."""
    prefix = "".join(c for c in cloud if c.isalnum()) or "cloud"
    while any(name.startswith(prefix) for name in site.taken):
        prefix += "x"
    return f"{prefix}-[1-{NODES}]"


def _not_usable(found: Sequence[Found]) -> Iterator[str]:
    for one in found:
        if not one.usable:
            yield f"  # {one.what}: {one.enable}"
