"""The configuration that follows from a site, its clouds and the answers, with comments. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.base.units import format_duration, format_size
from slurm_elastic.config import configfile
from slurm_elastic.config.access import Who
from slurm_elastic.config.found import Found
from slurm_elastic.model.cluster import Location
from slurm_elastic.setup.edit import flow
from slurm_elastic.setup.questions import Answers
from slurm_elastic.setup.site import Facts
from slurm_elastic.setup.sizes import node_of, told, wanted

NODES = 8  # nodes of each pool: a start
REHEARSAL = Found(
    name="rehearsal", provider="fake", location=Location.PUBLIC, usable=True,
    what="a cloud in memory, as none can be used yet",
)  # fmt: skip
NOBODY = Who()


def compose(site: Facts, found: Sequence[Found], given: Answers) -> str:
    clouds = chosen(found, given)
    lines = [
        f"# Made by `slurm-elastic init` from {site.conf}. docs/configuration.md has all keys.",
        f"cluster: {flow({'name': site.cluster})}",
        f"slurm: {flow({'conf': site.conf, 'user': site.user})}",
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


def checked(site: Facts, found: Sequence[Found], given: Answers, source: str) -> str:
    """The same. ConfigError where the configuration's rules are against it, once there is a cloud:
    that may lack its hosts as yet.
    """
    text = compose(site, found, given)
    if chosen(found, given):
        configfile.parse(text, source)
    return text


def chosen(found: Sequence[Found], given: Answers) -> tuple[Found, ...]:
    """The clouds of the answers but those without hosts; one in memory where none is found."""
    if not any(one.usable for one in found):
        return (REHEARSAL,)
    return tuple(one for one in named(found, given) if given.hosts or not one.by_node)


def named(found: Sequence[Found], given: Answers) -> tuple[Found, ...]:
    """The clouds of the answers."""
    return tuple(one for one in found if one.usable and one.name in given.clouds)


def differs(found: Sequence[Found], given: Answers) -> Iterator[str]:
    """What the file has otherwise than it was answered."""
    for one in named(found, given):
        if one.by_node and not given.hosts:
            yield f"{one.name} is left out: no host of it is named."
        if (node := node_of(one, given.size)) != given.size:
            yield f"A node of {one.name} gets {told(node)}: no host there has more."


def _who(site: Facts, given: Answers) -> Iterator[str]:
    if given.max_time is None:
        return
    yield ""
    if site.max_time is None and site.default_time is None:
        yield "# Jobs that name no time have no end: none starts in a cloud until this has a"
        yield "# default_time, such as default_time: 4h."
    yield f"who: {{max_time: {format_duration(given.max_time)}}}    # for jobs in the clouds"


def _money(given: Answers) -> Iterator[str]:
    if given.cap is None:
        yield "# limits: {dollars_per_hour: 5}    # the cap; public clouds stay shut without it"
    else:
        yield f"limits: {{dollars_per_hour: {flow(dollars(given.cap))}}}"


def dollars(cap: float) -> float:
    """Whole ones as people write them."""
    return int(cap) if cap.is_integer() else cap


def _join(given: Answers, clouds: Sequence[Found]) -> Iterator[str]:
    if given.head and any(one.joins for one in clouds):
        head = flow(given.head)
        yield f"join: {{head: {head}}}    # machines make themselves nodes: docs/joining.md"


def _checkpoint(given: Answers) -> Iterator[str]:
    if given.checkpoints:
        yield f"checkpoint: {{directory: {flow(given.checkpoints)}}}    # docs/checkpointing.md"


def cloud_lines(one: Found, given: Answers, everywhere: Who = NOBODY) -> Iterator[str]:
    """An entry of ``clouds``. ``everywhere`` may use all clouds already."""
    yield f"  - name: {one.name}    # {one.what}"
    yield f"    provider: {one.provider}"
    yield f"    location: {one.location.value}"
    if one is REHEARSAL:
        size = f"{{cpus: {given.cpus}, memory: {format_size(given.memory)}, price: 0.1}}"
        yield f"    types: {{small: {size}}}    # replace this cloud by one of yours"
    if one.location is Location.PUBLIC:
        yield from _allowed(given, everywhere)
    for key, value in one.keys.items():
        yield f"    {key}: {flow(value)}{_COMMENTS.get(key, '')}"
    if one.by_node:
        yield f"    hosts: {flow(given.hosts)}"
    if one.sized:
        cpus, memory = node_of(one, given.size)
        size = f"{{cpus: {cpus}, memory: {format_size(memory)}, price: 0}}"
        yield f"    types: {{node: {size}}}    # price: power and depreciation, $/h"


def _allowed(given: Answers, everywhere: Who) -> Iterator[str]:
    lists = {"accounts": given.accounts, "groups": given.groups}
    parts = {key: list(names) for key, names in lists.items() if names}
    if (given.accounts, given.groups) == (everywhere.accounts, everywhere.groups) and parts:
        return
    if parts:
        yield f"    who: {flow(parts)}"
    else:
        yield "    # who: {accounts: [physics]}    # or groups: it stays shut while nobody is named"


_COMMENTS = {
    "catalogue": "    # types and prices come from the cloud: docs/catalogues.md",
}


def pool_lines(one: Found, site: Facts, given: Answers) -> Iterator[str]:
    """An entry of ``pools``: nodes of the answered shape, by whatever types have it."""
    cpus, memory = node_of(one, given.size)
    yield f"  - name: {one.name}"
    yield f"    cloud: {one.name}"
    nodes = ",".join(given.hosts) if one.by_node else free_nodes(one.name, site)
    yield f"    nodes: {flow(nodes)}"
    less = (cpus, memory) != given.size
    yield f"    cpus: {cpus}{'    # no host has more for one node' if less else ''}"
    yield f"    memory: {format_size(memory)}"
    if one.provider == "local":
        yield "    slurmd_port: 17000    # they share this host"
    if one.keys.get("catalogue"):
        yield f"    instance_types: {flow(wanted(one, (cpus, memory)))}"
    elif one.sized:
        yield "    instance_types: [node]"
    if one.spot:
        markets = "[spot, on-demand]" if given.spot else "[on-demand]"
        yield f"    markets: {markets}"


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
