"""The servers of ``join.mounts``: whether they have the directories, asked from the head."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from slurm_elastic.base.errors import reason_of
from slurm_elastic.base.pages import page
from slurm_elastic.config import Config
from slurm_elastic.config.mounting import MachineMount, mounts_of
from slurm_elastic.config.tunnel import clouds_with_tunnel
from slurm_elastic.model.finding import Finding
from slurm_elastic.watch.doctor.nfs import NFS_PORT, NfsDirectory, NfsError, ask

SUBJECT = "NFS"
TIMEOUT_S = 5.0
Ask = Callable[[str, str, float], NfsDirectory]


def examine(config: Config, probe: Ask = ask) -> Iterator[Finding]:
    """Yield a finding for each directory of a server."""
    for mounts, clouds in _by_source(config).values():
        yield _finding(config, mounts, clouds, probe)


def _by_source(config: Config) -> Mapping[str, tuple[list[MachineMount], list[str]]]:
    """The mounts of each directory, with the clouds whose machines make them."""
    by_source: dict[str, tuple[list[MachineMount], list[str]]] = {}
    for cloud in config.clouds:
        for mount in mounts_of(config, cloud):
            mounts, clouds = by_source.setdefault(mount.source, ([], []))
            mounts.append(mount)
            clouds.append(cloud.name)
    return by_source


def _finding(
    config: Config, mounts: Sequence[MachineMount], clouds: Sequence[str], probe: Ask
) -> Finding:
    mount = mounts[0]
    is_required = any(mount.required for mount in mounts)
    report = Finding.wrong if is_required else Finding.note
    wait = f"machines of {', '.join(clouds)} " + (
        f"start no slurmd without {mount.path}" if is_required else f"run jobs without {mount.path}"
    )
    try:
        directory = probe(mount.server, mount.export, TIMEOUT_S)
    except OSError as error:
        return report(
            SUBJECT, f"{mount.source}: {reason_of(error)}",
            expected=f"an answer at TCP port {NFS_PORT}: {wait}",
            advice=f"start the NFS server, or let this host reach it ({page('data')})",
        )  # fmt: skip
    except NfsError as error:
        if os.geteuid() != 0:
            # Servers refuse ports of users by default (exports(5), secure).
            return Finding.note(SUBJECT, f"{mount.source}: {error}", advice="run doctor as root")
        return report(
            SUBJECT, f"{mount.source}: {error}", expected=f"the directory: {wait}",
            advice=f"export it to {_clients(config, clouds)} and to this host ({page('data')})",
        )  # fmt: skip
    if directory.owner and not directory.owner.isdigit():
        return Finding.note(
            SUBJECT, f"{mount.source} answers, and names users as {directory.owner}",
            expected="numbers, as machines have them",
            advice="nfsd: nfs4_disable_idmapping=Y; ganesha: Only_Numeric_Owners = true",
        )  # fmt: skip
    return Finding.ok(SUBJECT, f"{mount.source} answers, for {mount.path} on {', '.join(clouds)}")


def _clients(config: Config, clouds: Sequence[str]) -> str:
    network = config.join.network
    if network is not None and clouds_with_tunnel(config) >= set(clouds):
        return network.subnet
    return "the networks of the machines"
