"""Machines of a cloud in which a name belongs to one machine: the name says which launch and node a
machine is for, and asking for the name is a sure look-up, even while lists lack the machine.

A node's bare name is no identity: the next launch of the node would meet the name of a machine that
still ends. So the name is the node with a hash of the launch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence

from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.document import shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.model.cluster import Instance, LaunchSpec
from slurm_elastic.providers.base.parallel import each

HASH_LENGTH = 10
"""Hexadecimal digits. A name must differ only from names of machines that still exist."""


def machine_name(cluster_uuid: str, generation: str, node: str) -> str:
    """The name of the machine for a node of a launch. The same launch gives the same name, in each
    process and after each restart.
    """
    launch = f"{cluster_uuid}/{generation}/{node}".encode()
    return f"{node}-{hashlib.sha256(launch).hexdigest()[:HASH_LENGTH]}"


def node_of(name: str) -> str:
    """The node of a machine with such a name."""
    return name.rpartition("-")[0]


def check_nodes(
    draft: Draft, cloud: CloudSettings, form: re.Pattern[str], most: int, expected: str
) -> None:
    """Report nodes of the cloud's pools from which no machine's name can be made. ``form``: the
    cloud's rule for a name of at most ``most`` characters; ``expected`` says it in words.
    """
    room = most - HASH_LENGTH - len("-")
    for i, pool in draft.pools.items():
        nodes = draft.nodes.get(i, []) if pool.cloud == cloud.name else []
        wrong = next((n for n in nodes if not form.fullmatch(n) or len(n) > room), "")
        if wrong:
            text = f"{expected}, at most {room} characters, because machines get nodes' names"
            draft.problems.add(("pools", i, "nodes"), shown(wrong), text)


def with_hidden(
    cluster_uuid: str,
    spec: LaunchSpec,
    listed: Sequence[Instance],
    get: Callable[[str], Instance | None],
    threads: int = 8,
) -> Sequence[Instance]:
    """``listed`` with the machines of this launch that lists do not show yet. ``get`` looks a name
    up: None means that the cloud has no such machine. Its ProviderErrors are raised, because then
    nobody knows whether a machine exists.
    """
    shown_nodes = {m.node for m in listed if m.generation == spec.generation}
    names = [
        machine_name(cluster_uuid, spec.generation, node)
        for node in spec.nodes
        if node not in shown_nodes
    ]
    hidden = [future.result() for future in each(names, get, threads)]
    return (*listed, *(machine for machine in hidden if machine is not None))
