"""Which slurmctld acts, as Slurm's own controllers find it out.

Of several controllers the acting one writes ``heartbeat`` in StateSaveLocation: 16 bytes, two
big-endian uint64, the Unix time and its place among the lines of SlurmctldHost (0: the first). It
does so as it takes over, then each quarter of SlurmctldTimeout or 30 s, and a backup takes over
only where that stood still (Slurm 22.05: slurmctld/heartbeat.c, backup.c). ``scontrol ping`` does
not tell: both are UP.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.slurm.client import confvalues
from slurm_elastic.slurm.client.siteconf import SiteConf, read

TIMEOUT = 120.0
"""SlurmctldTimeout (s) where slurm.conf has none."""
_FORM = struct.Struct(">QQ")
_STATE = "/var/spool"


class Controllers(Struct, frozen=True, kw_only=True):
    """The controllers of slurm.conf: ``hosts`` by name, the first one first, ``place`` this host's
    among them, ``heartbeat`` the file by which the acting one is known, ``timeout`` in s.
    """

    hosts: tuple[str, ...]
    place: int
    heartbeat: Path
    timeout: float

    @property
    def takeover(self) -> float:
        """Seconds within which Slurm asks again for what it has forgotten in a takeover."""
        return takeover(self.timeout)

    def acting(self, now: float) -> int | None:
        """The place of the one that acts; None where nobody has said so for SlurmctldTimeout. With
        one controller it always acts. OSError for a file that cannot be read.
        """
        if len(self.hosts) == 1:
            return 0
        try:
            raw = _read(self.heartbeat)
        except FileNotFoundError:
            return None
        if len(raw) != _FORM.size:
            return None  # it is being written
        at, place = _FORM.unpack(raw)
        return int(place) if abs(now - at) <= self.timeout else None

    def acting_host(self, now: float) -> str:
        """The name of the one that acts; "" where none does, or none of these."""
        place = self.acting(now)
        return "" if place is None or place >= len(self.hosts) else self.hosts[place]

    def place_of(self, host: str) -> int | None:
        """That of the host of that name; None where it is no controller."""
        return next((n for n, name in enumerate(self.hosts) if _same(name, host)), None)


def _read(path: Path) -> bytes:
    """What slurmctld removes before it links the next one there. A client of NFS that has looked
    between the two believes for up to a minute that there is none, unless it opens the directory;
    one that has just opened it reads nothing.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
        os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY))
        return path.read_bytes()


def controllers(conf: str) -> Controllers:
    """By slurm.conf; ConfigError where this host is none of them."""
    site = read(conf)
    hosts = tuple(entry.value.partition("(")[0] for entry in site.options("SlurmctldHost"))
    own = os.uname().nodename
    place = next((n for n, host in enumerate(hosts) if _same(host, own)), None)
    if place is None:
        named = ", ".join(hosts) or "none"
        raise ConfigError(
            f"ha.directory: this host is {own}, and {conf} has SlurmctldHost {named}: only heads "
            "of Slurm can act"
        )
    return Controllers(
        hosts=hosts, place=place, heartbeat=state_of(site) / "heartbeat", timeout=timeout_of(site)
    )


def timeout_of(site: SiteConf) -> float:
    """SlurmctldTimeout (s), after which another controller takes over."""
    timeout = site.option("SlurmctldTimeout")
    seconds = confvalues.number(timeout.value) if timeout else None
    return TIMEOUT if seconds is None else float(seconds)


def takeover(timeout: float) -> float:
    """Seconds within which Slurm asks again for what it has forgotten in a takeover: it allocates
    no sooner than 30 s after it, by which jobs of the last moments begin anew.
    """
    return 2 * timeout + 60.0


def state_of(site: SiteConf) -> Path:
    """StateSaveLocation, which both heads share."""
    state = site.option("StateSaveLocation")
    return Path(state.value if state else _STATE)


def _same(host: str, own: str) -> bool:
    """As Slurm does: the whole name, or what is before the first dot (read_config.c)."""
    return host in (own, own.partition(".")[0])
