"""Finds out which slurmctld acts, as Slurm's own controllers do.

With several controllers the acting one writes ``heartbeat`` in StateSaveLocation: 16 bytes, two
big-endian uint64, the Unix time and its index among the lines of SlurmctldHost (0: the first). It
does so when it takes over, and then each quarter of SlurmctldTimeout or 30 s. A backup takes over
only if the file has stood still (Slurm 22.05: slurmctld/heartbeat.c, backup.c). ``scontrol ping``
does not help, because both controllers are UP.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base.errors import ConfigError, PassingError
from slurm_elastic.slurm.client import confvalues
from slurm_elastic.slurm.client.siteconf import SiteConf, read

DEFAULT_TIMEOUT_S = 120.0
"""SlurmctldTimeout if slurm.conf has none."""
_FORM = struct.Struct(">QQ")
_DEFAULT_STATE_DIRECTORY = "/var/spool"


class Controllers(Struct, frozen=True, kw_only=True):
    """The controllers of slurm.conf. ``hosts``: their names, the first one first. ``place``: this
    host's index among them. ``heartbeat``: the file that names the acting one. ``timeout``: s.
    """

    hosts: tuple[str, ...]
    place: int
    heartbeat: Path
    timeout: float

    @property
    def takeover(self) -> float:
        """Seconds within which Slurm asks again for everything that it forgot in a takeover."""
        return takeover(self.timeout)

    def acting(self, now: float) -> int | None:
        """The index of the acting controller.

        None if no controller has written the file for SlurmctldTimeout: then the head that acts
        goes on, and the other one waits. OSError if the file cannot be read: then neither acts.
        """
        # A single controller writes no file. A file that is written lately is of a controller that
        # slurm.conf has got after this service started.
        without_file = 0 if len(self.hosts) == 1 else None
        try:
            content = _read(self.heartbeat)
        except FileNotFoundError:
            return without_file
        if len(content) != _FORM.size:
            return None  # slurmctld is writing it
        written_at, place = _FORM.unpack(content)
        # abs(): after a clock was set back, a heartbeat from the future would keep a dead
        # controller acting.
        return int(place) if abs(now - written_at) <= self.timeout else without_file

    def acting_host(self, now: float) -> str:
        """The name of the acting host. "" if no controller acts, or an unknown one."""
        place = self.acting(now)
        return "" if place is None or place >= len(self.hosts) else self.hosts[place]

    def place_of(self, host: str) -> int | None:
        """The index of that host. None if it is no controller."""
        return next((n for n, name in enumerate(self.hosts) if _same(name, host)), None)


def _read(path: Path) -> bytes:
    """Read the file. slurmctld removes it before it links the next one. If an NFS client looks in
    between, it believes for up to a minute that the file is missing, unless it opens the directory.
    A client that has just opened the removed file reads nothing.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
        os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY))
        return path.read_bytes()


def controllers(conf: str) -> Controllers:
    """The controllers of slurm.conf. ConfigError if this host is not among them."""
    site = read(conf)
    # A line may be SlurmctldHost=NAME(ADDRESS). The index in the file counts these lines.
    hosts = tuple(entry.value.partition("(")[0] for entry in site.options("SlurmctldHost"))
    own_name = os.uname().nodename
    place = next((n for n, host in enumerate(hosts) if _same(host, own_name)), None)
    if place is None:
        listed = ", ".join(hosts) or "none"
        raise ConfigError(
            f"ha.directory: this host is {own_name}, and {conf} has SlurmctldHost {listed}: only"
            " heads of Slurm can act"
        )
    return Controllers(
        hosts=hosts, place=place, heartbeat=state_of(site) / "heartbeat", timeout=timeout_of(site)
    )


def controllers_for_service(conf: str) -> Controllers:
    """As ``controllers``, for the start of a service. PassingError if slurm.conf cannot be read: it
    may be on a shared disk that comes later, and after a ConfigError systemd starts no service.
    """
    try:
        return controllers(conf)
    except ConfigError as error:
        if isinstance(error.__cause__, OSError):
            raise PassingError(str(error)) from error
        raise


def timeout_of(site: SiteConf) -> float:
    """SlurmctldTimeout (s), after which another controller takes over."""
    timeout = site.option("SlurmctldTimeout")
    seconds = confvalues.number(timeout.value) if timeout else None
    return DEFAULT_TIMEOUT_S if seconds is None else float(seconds)


def takeover(timeout: float) -> float:
    """Seconds within which Slurm asks again for everything that it forgot in a takeover. The new
    slurmctld first allocates nodes 30 s after the takeover, and jobs of the last moments start over
    then.
    """
    return 2 * timeout + 60.0


def state_of(site: SiteConf) -> Path:
    """StateSaveLocation, which both heads share."""
    state = site.option("StateSaveLocation")
    return Path(state.value if state else _DEFAULT_STATE_DIRECTORY)


def _same(host: str, own_name: str) -> bool:
    """Compare as Slurm does: the whole name, or the part before the first dot (read_config.c)."""
    return host in (own_name, own_name.partition(".")[0])
