"""Slurm's ports on the head: slurmctld's port, and the ports on which an srun on the head
listens.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.slurm.client import siteconf

_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORTS = re.compile(r"\d{1,5}(-\d{1,5})?")
SLURMCTLD = "6817"
_DEFAULT_PORT = int(SLURMCTLD)


class SlurmPorts(NamedTuple):
    """Each is a port or a range (``6817``, ``60001-63000``). ``has_srun_range``: no other program
    has srun's ports, because slurm.conf sets SrunPortRange.
    """

    slurmctld: str
    srun: str
    has_srun_range: bool


def slurm_ports(slurm_conf: str) -> SlurmPorts:
    """Return the ports of slurm.conf (SlurmctldPort, SrunPortRange), and the default of Slurm or
    the kernel for a missing option. ConfigError if slurm.conf cannot be read.
    """
    site = siteconf.read(slurm_conf)
    entries = [site.option(name) for name in ("SlurmctldPort", "SrunPortRange")]
    return _ports_of(
        *(e.value if e is not None and _PORTS.fullmatch(e.value) else None for e in entries)
    )


def _ports_of(slurmctld: str | None, srun: str | None) -> SlurmPorts:
    low, high = _EPHEMERAL_PORTS.read_text(encoding="ascii").split()
    return SlurmPorts(slurmctld or SLURMCTLD, srun or f"{low}-{high}", srun is not None)


def _ports_or_defaults(slurm_conf: str) -> SlurmPorts:
    """The ports as far as they are known: a head may be set up before it has a slurm.conf."""
    try:
        return slurm_ports(slurm_conf)
    except ConfigError:
        return _ports_of(None, None)


def slurmctld_ports(slurm_conf: str) -> tuple[int, int]:
    """Return the first and the last port of slurmctld, which listens on all between them."""
    return _range(_ports_or_defaults(slurm_conf).slurmctld)


def srun_ports(slurm_conf: str) -> tuple[int, int]:
    """Return the first and the last port on which an srun on the head may listen."""
    return _range(_ports_or_defaults(slurm_conf).srun)


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def with_port(head: str, slurm_conf: str) -> str:
    """Return ``join.head`` for slurmd's ``--conf-server``. A host without a port gets slurmctld's
    if that port is not 6817, the default of slurmd.
    """
    port, _ = slurmctld_ports(slurm_conf)
    if port == _DEFAULT_PORT:
        return head
    return ",".join(host if ":" in host else f"{host}:{port}" for host in head.split(","))
