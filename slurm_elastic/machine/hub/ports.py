"""Slurm's ports on the head: slurmctld's, and those at which an srun on the head listens."""

from __future__ import annotations

import re
from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.slurm.client import siteconf

_GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORTS = re.compile(r"\d{1,5}(-\d{1,5})?")
SLURMCTLD = "6817"


def slurm_ports(slurm_conf: str) -> tuple[str, ...]:
    """As slurm.conf sets them (SlurmctldPort, SrunPortRange), otherwise the defaults of Slurm and
    the kernel.
    """
    try:
        site = siteconf.read(slurm_conf)
    except ConfigError:
        site = None
    low, high = _GIVEN_OUT.read_text(encoding="ascii").split()
    usual = {"SlurmctldPort": SLURMCTLD, "SrunPortRange": f"{low}-{high}"}
    said = {name: site.option(name) for name in usual} if site else {}
    return tuple(
        entry.value if (entry := said.get(name)) and _PORTS.fullmatch(entry.value) else default
        for name, default in usual.items()
    )
