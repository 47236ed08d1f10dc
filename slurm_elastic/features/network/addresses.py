"""Machines behind a tunnel: set their tunnel addresses as the addresses of Slurm's nodes, and add
the secret word with which they enrol to their launches.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from msgspec.structs import replace

from slurm_elastic.config.sections.joining import Enrol
from slurm_elastic.config.tunnel import enrols
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions
from slurm_elastic.features.network.enrolment import word_of
from slurm_elastic.model.cluster import Instance, LaunchSpec


def join(site: Site) -> Extensions | None:
    """Join if machines are reached through a tunnel."""
    if not site.tunnelled:
        return None
    return Extensions(
        complete_listed=[partial(in_tunnel, site)], complete_spec=[partial(with_word, site)]
    )


def in_tunnel(site: Site, cloud: str, machines: Iterable[Instance]) -> tuple[Instance, ...]:
    """Return the machines with their tunnel addresses, which Slurm's nodes use. A machine of a
    tunnelled cloud whose tunnel key is not accepted yet gets the address None. A machine without a
    public address uses its address in the cloud's own network: ``tunnels`` may call it.
    """
    if cloud not in site.tunnelled:
        return tuple(machines)
    addresses = {(t.generation, t.node): t.address for t in site.ledger.tunnels.all()}
    # The cloud lists a restarted machine under the generation of its first boot. The ledger has
    # the generation under which its tunnel was recorded.
    latest = {m.instance.id: m.instance.generation for m in site.ledger.machines.live()}
    # A machine without an accepted key has no tunnel, so no address of it can be reached.
    return tuple(
        replace(
            i,
            address=addresses.get((latest.get(i.id, i.generation), i.node)),
            public_address=i.public_address or i.address,
        )
        for i in machines
    )


def enrolment_word(site: Site, cloud: str, generation: str) -> str:
    """The secret word with which machines of a launch enrol. It is "" if the cloud's machines print
    their keys on the console or have no tunnel. OSError if the state directory cannot be used.
    """
    network = site.config.join.network
    if network is None or cloud not in site.tunnelled:
        return ""
    if enrols(network, site.clouds[cloud]) is not Enrol.ONCE:
        return ""
    return word_of(site.config.state, generation)


def with_word(site: Site, spec: LaunchSpec) -> LaunchSpec:
    """Return the launch with the word with which its machines enrol."""
    return replace(spec, enrol=enrolment_word(site, spec.offer.cloud, spec.generation))
