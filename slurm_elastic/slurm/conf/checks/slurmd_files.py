"""The files of several slurmds on one host, as with clouds of ``provider: local``. Pure.

A slurmd that starts ends the process in its SlurmdPidFile (22.05: "killing old slurmd"), and keeps
the scripts and the credentials of its jobs in SlurmdSpoolDir.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.config import Config
from slurm_elastic.model.cluster import Pool
from slurm_elastic.slurm.client.siteconf import ConfRecord, SiteConf

_DEFAULTS = {"SlurmdPidFile": "/var/run/slurmd.pid", "SlurmdSpoolDir": "/var/spool/slurmd"}
"""Slurm's own values (slurm.conf(5))."""
_PROPOSED = {"SlurmdPidFile": "/run/slurmd-%n.pid", "SlurmdSpoolDir": "/var/spool/slurmd/%n"}
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})


def notices(config: Config, pools: Sequence[Pool], site: SiteConf) -> Iterator[str]:
    """A sentence for each option that gives two slurmds of this host the same file."""
    local_clouds = {cloud.name for cloud in config.clouds if cloud.provider == "local"}
    count = sum(len(pool.nodes) for pool in pools if pool.cloud in local_clouds)
    if not count or count + _has_own_slurmd(site) < 2:
        return
    for option, default in _DEFAULTS.items():
        entry = site.option(option)
        value = entry.value if entry else default
        if "%n" not in value:
            yield (
                f"{entry.location if entry else site.path}: {option} is {value}, and with provider"
                " local several slurmds run on this host: they would end each other, or overwrite"
                f" the files of each other's jobs; write %n, as {option}={_PROPOSED[option]}, and"
                " restart slurmd on all nodes"
            )


def _has_own_slurmd(site: SiteConf) -> bool:
    """Whether a node of the site runs on the head."""
    hosts = (entry.value.partition("(")[0] for entry in site.options("SlurmctldHost"))
    here = _HERE | {_short(host) for host in hosts}
    return any(not here.isdisjoint(map(_short, _names(node))) for node in site.nodes)


def _names(node: ConfRecord) -> tuple[str, ...]:
    return (*node.names, *node.get("nodehostname").split(","), node.get("nodeaddr"))


def _short(name: str) -> str:
    return name if name in _HERE else name.partition(".")[0].lower()
