"""Composes a configuration file, with comments, for a site, its clouds and the answers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.base.pages import page
from slurm_elastic.base.units import format_duration, format_size
from slurm_elastic.config import configfile
from slurm_elastic.config.found import Found
from slurm_elastic.config.sections.access import Who
from slurm_elastic.model.cluster import Location
from slurm_elastic.policies.launch.open_partitions import DEFAULT_PARTITION
from slurm_elastic.setup.edit import flow
from slurm_elastic.setup.questions import Answers, head_flaw
from slurm_elastic.setup.site import SiteFacts
from slurm_elastic.setup.sizes import format_shape, node_of, type_requirements

NODES = 8  # nodes of each new pool, to begin with
REHEARSAL = Found(
    name="rehearsal", provider="fake", location=Location.PUBLIC, usable=True,
    what="a cloud in memory, as none can be used yet",
)  # fmt: skip
NOBODY = Who()


def compose(site: SiteFacts, clouds_found: Sequence[Found], answers: Answers) -> str:
    """Return the text of the configuration file."""
    clouds = chosen(clouds_found, answers)
    lines = [
        f"# Made by `slurm-elastic init` from {site.conf}. {page('configuration')} has all keys.",
        *_skeleton_lines(clouds),
        f"cluster: {flow({'name': site.cluster})}",
        f"slurm: {flow({'conf': site.conf, 'user': site.user, **site.programs})}",
        *_allow_lines(site, answers),
        *_cap_lines(answers),
        *_head_lines(answers, clouds),
        *(f"# {step}" for step in head_steps(site, clouds, answers)),
        *_checkpoint_lines(answers),
        "",
        "clouds:",
        *(line for cloud in clouds for line in cloud_lines(cloud, site, answers)),
        *_unusable_lines(clouds_found),
        "",
        "pools:",
        *(line for cloud in clouds for line in pool_lines(cloud, site, answers)),
    ]
    return "\n".join(lines) + "\n"


def _skeleton_lines(clouds: Sequence[Found]) -> Iterator[str]:
    if any(cloud.todos for cloud in clouds):
        yield "# Each TODO is a step, with its command. Put its value in its place;"
        yield "# `slurm-elastic conf check` lists the remaining steps."


def checked(site: SiteFacts, clouds_found: Sequence[Found], answers: Answers, source: str) -> str:
    """Return the text of ``compose``. Raises ConfigError if the configuration would be invalid.

    Nothing is checked while all chosen clouds still lack their hosts, because the question
    about hosts comes after the one about clouds.
    """
    text = compose(site, clouds_found, answers)
    if clouds := chosen(clouds_found, answers):
        configfile.parse(text, source, whole=not any(cloud.todos for cloud in clouds))
    return text


def chosen(clouds_found: Sequence[Found], answers: Answers) -> tuple[Found, ...]:
    """Return the clouds of the answers, without clouds that need hosts but have none. If no usable
    cloud was found, return a cloud in memory, so that the file is complete.
    """
    if not any(cloud.usable for cloud in clouds_found):
        return (REHEARSAL,)
    return tuple(
        cloud
        for cloud in named(clouds_found, answers)
        if answers.hosts or cloud.todos or not cloud.by_node
    )


def named(clouds_found: Sequence[Found], answers: Answers) -> tuple[Found, ...]:
    """Return the usable clouds that the answers name."""
    return tuple(cloud for cloud in clouds_found if cloud.usable and cloud.name in answers.clouds)


def differs(clouds_found: Sequence[Found], answers: Answers) -> Iterator[str]:
    """Yield a sentence for each difference between the file and the answers."""
    for cloud in named(clouds_found, answers):
        if cloud.by_node and not (answers.hosts or cloud.todos):
            yield f"{cloud.name} is left out: no host of it is named."
        if (node := node_of(cloud, answers.size)) != answers.size:
            yield f"A node of {cloud.name} gets {format_shape(node)}: no host there has more."


def _allow_lines(site: SiteFacts, answers: Answers) -> Iterator[str]:
    keys: dict[str, object] = {}
    if answers.max_time is not None:
        keys["max_time"] = str(format_duration(answers.max_time))
    if answers.default_partition:
        keys["partitions"] = [DEFAULT_PARTITION]
    if not keys:
        return
    yield ""
    if answers.default_partition:
        yield f"# Jobs that name partition {site.partition} burst as jobs that name none do."
    if answers.max_time is not None and site.max_time is None and site.default_time is None:
        yield "# Jobs without a time limit do not start in a cloud until this has a"
        yield "# default_time, such as default_time: 4h."
    yield f"allow: {flow(keys)}    # for jobs in the clouds"


def _cap_lines(answers: Answers) -> Iterator[str]:
    if answers.cap is None:
        yield "# limits: {dollars_per_hour: 5}    # the cap; public clouds stay shut without it"
    else:
        yield f"limits: {{dollars_per_hour: {flow(dollars(answers.cap))}}}"


def dollars(cap: float) -> float:
    """Return a whole number as an integer, so that the file says 5 and not 5.0."""
    return int(cap) if cap.is_integer() else cap


def _head_lines(answers: Answers, clouds: Sequence[Found]) -> Iterator[str]:
    if answers.head and any(cloud.joins for cloud in clouds):
        head = flow(answers.head)
        yield f"join: {{head: {head}}}    # machines make themselves nodes: {page('joining')}"


def head_steps(site: SiteFacts, clouds: Sequence[Found], answers: Answers) -> Iterator[str]:
    """Yield the to-do for ``join.head`` if SlurmctldHost has no address that machines reach."""
    new = [cloud for cloud in clouds if cloud.joins and cloud.name in answers.clouds]
    if new and not answers.head and site.head_flaw and (flaw := head_flaw(site, new)):
        yield f"TODO join.head: {flaw}. Unless the image knows the head,"
        yield "write join: {head: ADDRESS} with the head's address as machines reach it."


def _checkpoint_lines(answers: Answers) -> Iterator[str]:
    if answers.checkpoints:
        yield f"checkpoint: {{directory: {flow(answers.checkpoints)}}}    # {page('checkpointing')}"


def cloud_lines(
    cloud: Found, site: SiteFacts, answers: Answers, everywhere: Who = NOBODY
) -> Iterator[str]:
    """Yield an entry of the list ``clouds``. ``everywhere``: who may use all clouds already, so
    that the entry need not repeat that.
    """
    yield f"  - name: {cloud.name}    # {cloud.what}"
    yield f"    provider: {cloud.provider}"
    yield f"    location: {cloud.location.value}"
    if cloud is REHEARSAL:
        size = f"{{cpus: {answers.cpus}, memory: {format_size(answers.memory)}, price: 0.1}}"
        yield f"    types: {{small: {size}}}    # replace this cloud by one of yours"
    if cloud.location is Location.PUBLIC:
        yield from _access_lines(site, answers, everywhere)
    for key, step in cloud.todos.items():
        if key not in cloud.keys:
            yield f"    # TODO {key}: {step}"
    for key, value in cloud.keys.items():
        has_step = key in cloud.todos
        comment = f"    # TODO {cloud.todos[key]}" if has_step else _COMMENTS.get(key, "")
        yield f"    {key}: {flow(value)}{comment}"
    if cloud.by_node and "hosts" not in cloud.keys:
        yield f"    hosts: {flow(answers.hosts)}"
    if cloud.sized:
        cpus, memory = node_of(cloud, answers.size)
        size = f"{{cpus: {cpus}, memory: {format_size(memory)}, price: 0}}"
        yield f"    types: {{node: {size}}}    # price: power and depreciation, $/h"


def _access_lines(site: SiteFacts, answers: Answers, everywhere: Who) -> Iterator[str]:
    lists = {"accounts": answers.accounts, "groups": answers.groups}
    lists_by_key = {key: list(names) for key, names in lists.items() if names}
    if (answers.accounts, answers.groups) == (
        everywhere.accounts,
        everywhere.groups,
    ) and lists_by_key:
        return
    if lists_by_key:
        yield f"    allow: {flow(lists_by_key)}"
    elif site.accounts_checked:
        yield "    # allow: {accounts: [physics]}  # or groups: it stays shut while nobody is named"
    else:
        # If Slurm does not check accounts, users may name any account.
        yield "    # allow: {groups: [physics]}  # Unix groups: it stays shut while nobody is named"


_COMMENTS = {
    "catalogue": f"    # types and prices come from the cloud: {page('catalogues')}",
}


def pool_lines(cloud: Found, site: SiteFacts, answers: Answers) -> Iterator[str]:
    """Yield an entry of the list ``pools``, with nodes of the shape in the answers."""
    cpus, memory = node_of(cloud, answers.size)
    yield f"  - name: {cloud.name}"
    yield f"    cloud: {cloud.name}"
    hosts = cloud.keys.get("hosts", answers.hosts) if cloud.by_node else None
    nodes = ",".join(hosts) if isinstance(hosts, dict) else free_nodes(cloud.name, site)
    yield f"    nodes: {flow(nodes)}"
    is_smaller = (cpus, memory) != answers.size
    bound = "no host has more for one node" if cloud.sized else "its type has no more"
    yield f"    cpus: {cpus}{f'    # {bound}' if is_smaller else ''}"
    yield f"    memory: {format_size(memory)}"
    if cloud.provider == "local":
        yield "    slurmd_port: 17000    # they share this host"
    if cloud.keys.get("catalogue"):
        yield f"    instance_types: {flow(type_requirements(cloud, (cpus, memory)))}"
    elif cloud.sized:
        yield "    instance_types: [node]"
    elif cloud.names_types:
        yield f"    instance_types: {flow([type_.name for type_ in cloud.types])}"
    if cloud.spot:
        markets = "[spot, on-demand]" if answers.spot else "[on-demand]"
        yield f"    markets: {markets}"


def free_nodes(cloud: str, site: SiteFacts) -> str:
    """Return a hostlist of names that the site does not use."""
    prefix = "".join(c for c in cloud if c.isalnum()) or "cloud"
    # Compare prefixes and not whole names: a site with cloud-1 may add cloud-9 later.
    while any(name.startswith(prefix) for name in site.taken):
        prefix += "x"
    return f"{prefix}-[1-{NODES}]"


def _unusable_lines(clouds_found: Sequence[Found]) -> Iterator[str]:
    for cloud in clouds_found:
        if not cloud.usable:
            yield f"  # {cloud.what}: {cloud.enable}"
