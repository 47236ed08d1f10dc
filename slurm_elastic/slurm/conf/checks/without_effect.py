"""Sentences of `conf check` about settings that are valid and change nothing."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_elastic.config import Config
from slurm_elastic.config.sections.copying import CopySettings, Data
from slurm_elastic.config.sections.joining import Network, Opener


def notices(config: Config) -> Iterator[str]:
    """A sentence for each setting that differs from its default and has no effect."""
    usual = CopySettings()
    copying = any(cloud.data is Data.COPY for cloud in config.clouds)
    changed = [
        f"copy.{name}"
        for name in usual.__struct_fields__
        if getattr(config.copy, name) != getattr(usual, name)
    ]
    if changed and not copying:
        yield (
            f"{', '.join(changed)}: no effect, because no cloud has `data: copy`, so no files are"
            " copied"
        )
    for mount in config.join.mounts:
        served = {cloud.name for cloud in config.clouds if cloud.data is Data.COPY}
        clouds = sorted(served & set(mount.clouds) if mount.clouds else served)
        if clouds:
            yield (
                f"data: copy of {', '.join(clouds)}: no effect below {mount.path}, because"
                " join.mounts has it on the machines: jobs there work on the files themselves"
            )
    if config.join.network is not None:
        yield from _tunnel(config.join.network)


def _tunnel(network: Network) -> Iterator[str]:
    if not network.tunnels and network.opened_by is Opener.HEAD:
        yield "join.network.opened_by: no effect, because `kind: none` has no tunnel"
    if network.udp_port != Network().udp_port and not network.head_opens:
        reason = "machines call the port of join.network.endpoint"
        if not network.tunnels:
            reason = "`kind: none` has no tunnel"
        yield (
            f"join.network.udp_port: no effect, because {reason}; only with `opened_by: head` does"
            " the head call this port"
        )
