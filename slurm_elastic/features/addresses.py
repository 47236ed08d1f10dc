"""Under which addresses machines are Slurm's nodes: those in the tunnel, where they open one; and
the word by which they enrol there.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from msgspec.structs import replace

from slurm_elastic.config.joining import Enrol
from slurm_elastic.config.tunnel import enrols
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions
from slurm_elastic.features.enrolment import word_of
from slurm_elastic.model.cluster import Instance, LaunchSpec


def join(site: Site) -> Extensions | None:
    """Join if machines are reached through a tunnel."""
    if not site.tunnelled:
        return None
    return Extensions(
        complete_listed=[partial(in_tunnel, site)], complete_spec=[partial(with_word, site)]
    )


def in_tunnel(site: Site, cloud: str, machines: Iterable[Instance]) -> tuple[Instance, ...]:
    """The same machines with their addresses in the tunnel, where they have one: under these they
    are Slurm's nodes.
    """
    if cloud not in site.tunnelled:
        return tuple(machines)
    known = {(t.generation, t.node): t.address for t in site.ledger.tunnels.all()}
    # One that was stopped and started is told by its cloud with the generation of its first boot.
    latest = {m.instance.id: m.instance.generation for m in site.ledger.machines.live()}
    # One whose key is not believed yet has no address: it can be reached nowhere.
    return tuple(
        replace(i, address=known.get((latest.get(i.id, i.generation), i.node))) for i in machines
    )


def enrolment_word(site: Site, cloud: str, generation: str) -> str:
    """The word that machines of a launch there are told to enrol by; "" where they print their
    keys, or have no tunnel. OSError where the state directory cannot be used.
    """
    network = site.config.join.network
    if network is None or cloud not in site.tunnelled:
        return ""
    if enrols(network, site.clouds[cloud]) is not Enrol.ONCE:
        return ""
    return word_of(site.config.state, generation)


def with_word(site: Site, spec: LaunchSpec) -> LaunchSpec:
    """The same launch, whose machines are told the word that they enrol by."""
    return replace(spec, enrol=enrolment_word(site, spec.offer.cloud, spec.generation))
