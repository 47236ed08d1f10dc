"""Reads the facts of a site's slurm.conf from which a first configuration is made."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections import Counter
from pathlib import Path

from msgspec import Struct

from slurm_elastic.config import SlurmSettings
from slurm_elastic.machine.hub.ports import SLURMCTLD
from slurm_elastic.slurm.client import confvalues, siteconf
from slurm_elastic.slurm.client.siteconf import SiteConf
from slurm_elastic.slurm.hooks.submit_filter import accounts_enforced

_NUMBER = re.compile(r"\d+")
_OTHER_PLACES = ("/usr/local/bin", "/usr/local/sbin", "/opt/slurm/bin", "/opt/slurm/sbin")


class SiteFacts(Struct, frozen=True, kw_only=True):
    """Facts of slurm.conf. ``partition``: the default one; the first if the site has no default one
    (``has_default_partition``). ``cpus`` and ``memory`` (MiB): the commonest shape of a node;
    ``max_time`` and ``default_time`` (s): limits of the default partition, None if it has none;
    ``taken``: the names of all nodes and partitions. ``gres``: the devices of nodes, without
    counts (``gpu:a100``). ``programs``: the settings of unusual
    directories of Slurm's programs. ``head_flaw``: why machines cannot reach ``head`` at the
    address that it has on this host.
    """

    conf: str
    cluster: str
    user: str
    head: str
    slurmctld_port: str = SLURMCTLD
    slurmd_port: str = "6818"
    partition: str
    has_default_partition: bool = False
    cpus: int
    memory: int
    nodes: int
    max_time: float | None
    default_time: float | None
    auth: str
    accounting: str
    accounts_checked: bool
    taken: frozenset[str]
    gres: tuple[str, ...] = ()
    programs: dict[str, str] = {}
    head_flaw: str = ""


def facts(path: Path) -> SiteFacts:
    """Read slurm.conf. Raises ConfigError with file and line if it cannot be understood."""
    site = siteconf.read(path, ignore="slurm-elastic.conf")
    shapes: Counter[tuple[int, int]] = Counter()
    for record in site.nodes:
        shapes[_shape(record)] += len(record.names)
    (cpus, memory), _ = (shapes.most_common(1) or [((1, 1024), 0)])[0]
    default = site.default_partition or next(iter(site.partitions), None)
    partitions = {name for p in site.partitions for name in p.names}
    return SiteFacts(
        conf=str(path),
        cluster=_text(site, "ClusterName", "cluster").lower(),
        user=_text(site, "SlurmUser", "root"),
        head=_head(site),
        slurmctld_port=_text(site, "SlurmctldPort", SLURMCTLD),
        slurmd_port=_text(site, "SlurmdPort", "6818"),
        partition=default.names[0] if default else "",
        has_default_partition=site.default_partition is not None,
        cpus=cpus,
        memory=memory,
        nodes=len(site.node_names),
        max_time=confvalues.seconds(default.get("maxtime")) if default else None,
        default_time=confvalues.seconds(default.get("defaulttime")) if default else None,
        auth=_text(site, "AuthType", "auth/munge").removeprefix("auth/"),
        accounting=_accounting(site),
        accounts_checked=_has_slurmdbd(site) and accounts_enforced(site),
        taken=frozenset({*site.node_names, *partitions}),
        gres=_gres(site),
        programs=_programs(),
    )


def _gres(site: SiteConf) -> tuple[str, ...]:
    items = (item for record in site.nodes for item in record.get("gres").split(",") if item)
    # "gpu:a100:8(S:0-1)" and "bandwidth:lustre:no_consume:4G" end with a count.
    return tuple(sorted({re.sub(r"(:no_consume)?(:\d+[KMGT]?)?(\(.*)?$", "", i) for i in items}))


def _programs() -> dict[str, str]:
    """Return the directories of Slurm's programs by key of ``slurm``, without the usual directories
    of Debian and RHEL.
    """
    usual = SlurmSettings()
    programs = {"bin_dir": ("scontrol", usual.bin_dir), "sbin_dir": ("slurmctld", usual.sbin_dir)}
    path = os.pathsep.join([os.environ.get("PATH", ""), *_OTHER_PLACES])
    paths = {
        key: shutil.which(program, path=path)
        for key, (program, place) in programs.items()
        if not Path(place, program).exists()
    }
    return {key: str(Path(program).parent) for key, program in paths.items() if program}


def _shape(record: siteconf.ConfRecord) -> tuple[int, int]:
    """Return a node's CPUs and RealMemory (MiB) by the rules of slurm.conf(5). If RealMemory is
    missing, assume 1 GiB per CPU.
    """
    values = {key: _leading_number(record.get(key)) for key in (
        "cpus", "procs", "boards", "sockets", "socketsperboard", "corespersocket", "threadspercore",
    )}  # fmt: skip
    factors = (
        values["boards"], values["sockets"] or values["socketsperboard"],
        values["corespersocket"], values["threadspercore"],
    )  # fmt: skip
    cpus = values["cpus"] or values["procs"] or math.prod(n or 1 for n in factors)
    return cpus, _leading_number(record.get("realmemory")) or 1024 * cpus


def _leading_number(text: str) -> int:
    match = _NUMBER.match(text)
    return int(match[0]) if match else 0


def _text(site: SiteConf, option: str, default: str) -> str:
    entry = site.option(option)
    return entry.value if entry is not None else default


def _head(site: SiteConf) -> str:
    """Return the address of the first SlurmctldHost, or its name if it has no address."""
    entries = site.options("SlurmctldHost") or site.options("ControlMachine")
    if not entries:
        return ""
    name, _, address = entries[0].value.partition("(")
    return address.rstrip(")") or name


def _has_slurmdbd(site: SiteConf) -> bool:
    return _text(site, "AccountingStorageType", "none").rpartition("/")[2] == "slurmdbd"


def _accounting(site: SiteConf) -> str:
    if not _has_slurmdbd(site):
        return "no slurmdbd"
    return "slurmdbd, accounts checked" if accounts_enforced(site) else "slurmdbd, -A not checked"
