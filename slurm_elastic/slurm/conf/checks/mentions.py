"""The places outside our own files that name our nodes or partitions. Pure except for reading.

slurmctld does not start with a partition whose nodes it does not know (22.05 to 25.11). It logs an
error for every other place that names an unknown node, and ignores the node. When slurmctld starts,
it deletes a reservation with an unknown node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from slurm_elastic.base.hostlist import HostlistError, compress, expand
from slurm_elastic.model.slurm import Reservation
from slurm_elastic.slurm.client.siteconf import ConfRecord, Entry, SiteConf
from slurm_elastic.slurm.conf.leaving import NodesAndPartitions

_COUNT = re.compile(r":\d+(?=,|$)")
"""The end of an item of SuspendExcNodes: the number of its nodes that stay on (``pub[1-4]:2``)."""


class Mention(Struct, frozen=True, kw_only=True):
    """``holder`` (as ``partition sim``) names ``names`` at ``location`` (file and line, or "").

    ``is_fatal``: slurmctld does not start once these nodes have left.
    """

    location: str
    holder: str
    names: tuple[str, ...]
    is_fatal: bool = False

    @property
    def listed(self) -> str:
        """The names as a hostlist."""
        return compress(self.names)


def mentions(
    site: SiteConf,
    switches: Sequence[ConfRecord],
    reservations: Iterable[Reservation],
    things: NodesAndPartitions,
) -> tuple[Mention, ...]:
    """Every place that names a node or partition of ``things``, in the order of the files."""
    places = (
        *partitions(site, things),
        *suspend_exceptions(site, things),
        *_down_nodes(site, things),
        *_switches(switches, things),
        *_reservations(reservations, things),
    )
    return tuple(places)


def partitions(site: SiteConf, things: NodesAndPartitions) -> Iterator[Mention]:
    """The site's partitions and node sets that hold our nodes."""
    for kind, records in (("partition", site.partitions), ("node set", site.nodesets)):
        for record in records:
            entry = record.values.get("nodes")
            names = _cloud_names(entry.value, things.nodes) if entry else ()
            if entry and names:
                holder = f"{kind} {record.names[0]}"
                yield Mention(location=entry.location, holder=holder, names=names, is_fatal=True)


def suspend_exceptions(site: SiteConf, things: NodesAndPartitions) -> Iterator[Mention]:
    """SuspendExcNodes and SuspendExcParts, by which Slurm leaves our nodes powered up."""
    for name, items in (("SuspendExcNodes", things.nodes), ("SuspendExcParts", things.partitions)):
        entry = site.option(name)
        names = _cloud_names(_COUNT.sub("", entry.value), items) if entry else ()
        if entry and names:
            yield Mention(location=entry.location, holder=name, names=names)


def kept_states(site: SiteConf) -> Iterator[str]:
    """A sentence about SuspendExcStates (23.11 and later), which also holds for our nodes."""
    entry = site.option("SuspendExcStates")
    if entry is not None and site.items("SuspendExcStates"):
        yield (
            f"{entry.location}: SuspendExcStates is {entry.value}: Slurm does not power down cloud"
            " nodes in these states, and their machines cost money as long"
        )


def _down_nodes(site: SiteConf, things: NodesAndPartitions) -> Iterator[Mention]:
    heads = (line.entries[0] for line in site.lines if line.is_record)
    for head in heads:
        names = _cloud_names(head.value, things.nodes) if head.key == "downnodes" else ()
        if names:
            yield Mention(location=head.location, holder="DownNodes", names=names)


def _switches(switches: Sequence[ConfRecord], things: NodesAndPartitions) -> Iterator[Mention]:
    for switch in switches:
        names = _cloud_names(switch.get("nodes"), things.nodes)
        if names:
            where = _place(switch.values.get("nodes"), switch.location)
            yield Mention(location=where, holder=f"switch {switch.names[0]}", names=names)


def _place(entry: Entry | None, otherwise: str) -> str:
    return entry.location if entry else otherwise


def _reservations(
    reservations: Iterable[Reservation], things: NodesAndPartitions
) -> Iterator[Mention]:
    for reservation in reservations:
        names = tuple(node for node in reservation.nodes if node in things.nodes)
        # When slurmctld starts, it replaces the node list of such a reservation.
        is_renewed = reservation.flags & {"ALL_NODES", "PART_NODES"}
        if names and not is_renewed:
            yield Mention(location="", holder=f"reservation {reservation.name}", names=names)


def _cloud_names(hostlist: str, cloud_names: frozenset[str]) -> tuple[str, ...]:
    """The names in the hostlist, or in a plain list with commas, that are ``cloud_names``."""
    if not hostlist or not cloud_names:
        return ()
    try:
        names = expand(hostlist)
    except HostlistError:
        names = hostlist.split(",")
    return tuple(name for name in names if name in cloud_names)
