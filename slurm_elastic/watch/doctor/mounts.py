"""The servers of ``join.mounts``: whether they answer, asked from the head. Only a mount could tell
whether a server has the directory for machines, and the first machine says that on its console.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence

from slurm_elastic.base.errors import reason_of
from slurm_elastic.base.pages import page
from slurm_elastic.config import Config
from slurm_elastic.config.mounting import MachineMount, mounts_of
from slurm_elastic.config.validation.validate_mounts import NFS_PORT
from slurm_elastic.model.finding import Finding

SUBJECT = "NFS"
TIMEOUT_S = 5.0
Connect = Callable[[str], None]


def connect(server: str) -> None:
    """Connect to the server's port of NFS 4. OSError if it does not answer."""
    socket.create_connection((server.strip("[]"), NFS_PORT), TIMEOUT_S).close()


def examine(config: Config, probe: Connect = connect) -> Iterator[Finding]:
    """Yield a finding for each directory of a server."""
    for mounts, clouds in _by_source(config).values():
        yield _finding(mounts, clouds, probe)


def _by_source(config: Config) -> Mapping[str, tuple[list[MachineMount], list[str]]]:
    """The mounts of each directory, with the clouds whose machines make them."""
    by_source: dict[str, tuple[list[MachineMount], list[str]]] = {}
    for cloud in config.clouds:
        for mount in mounts_of(config, cloud):
            mounts, clouds = by_source.setdefault(mount.source, ([], []))
            mounts.append(mount)
            clouds.append(cloud.name)
    return by_source


def _finding(mounts: Sequence[MachineMount], clouds: Sequence[str], probe: Connect) -> Finding:
    mount, served = mounts[0], ", ".join(clouds)
    try:
        probe(mount.server)
    except OSError as error:
        is_required = any(mount.required for mount in mounts)
        report = Finding.wrong if is_required else Finding.note
        consequence = f"machines of {served} " + (
            f"start no slurmd without {mount.path}"
            if is_required
            else f"run jobs without {mount.path}"
        )
        return report(
            SUBJECT, f"{mount.source}: {reason_of(error)}",
            expected=f"an answer at TCP port {NFS_PORT}: {consequence}",
            advice=f"start the NFS server, or let this host reach it ({page('data')})",
        )  # fmt: skip
    return Finding.ok(
        SUBJECT, f"the server of {mount.source} answers, for {mount.path} on {served}"
    )
