"""Spares Slurm from looks at queue and nodes while nothing happens: the interval doubles up to a
maximum (vcluster 2013 probes at growing intervals, too).

slurmctld writes FILES in StateSaveLocation within seconds after any change of a job or a node, and
every five minutes. While the files stay the same, no job was submitted, started or ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.slurm.client import acting, siteconf

log = logging.getLogger(__name__)

FILES = ("job_state", "node_state")
PROOF = "clustername"
"""slurmctld writes it before all else. Without it, the directory is not the right one."""
Stamp = tuple[tuple[int, int, int], ...]
"""Inode, size and time (ns) of each file; zeros if there was no job yet. slurmctld replaces a file
by a new one.
"""


def state_directory(slurm_conf: str) -> Path | None:
    """StateSaveLocation; None if slurm.conf cannot be read."""
    try:
        return acting.state_of(siteconf.read(slurm_conf))
    except (SlurmElasticError, OSError) as error:
        log.info("slurm.conf cannot be read, every look reads Slurm: %s", error)
        return None


class QuietLooks:
    """``longest_s``: the longest time (s) without a look. ``directory``: StateSaveLocation. If it
    is not known or its files cannot be read, every look is needed.
    """

    def __init__(
        self, base_s: float, longest_s: float, directory: Path | None, clock: Callable[[], float]
    ) -> None:
        self._base_s, self._longest_s = base_s, longest_s
        self._directory, self._clock = directory, clock
        self._pause_s = base_s
        self._stamp: Stamp | None = None
        self._next_look_at = clock()

    def is_needed(self) -> bool:
        """Whether to look now. If so, call ``looked`` afterwards, unless the look failed."""
        stamp = self._read()
        if stamp is not None and stamp == self._stamp and self._clock() < self._next_look_at:
            return False
        # Before Slurm is read: a job that comes during the look changes the file once more. Without
        # a successful look the next one is needed, too.
        self._stamp, self._next_look_at = stamp, self._clock()
        return True

    def looked(self, *, is_quiet: bool) -> None:
        """Note a look. ``is_quiet``: there was nothing to decide on."""
        self._pause_s = min(2 * self._pause_s, self._longest_s) if is_quiet else self._base_s
        # A little less, so that the look at the end of the pause does not miss it.
        self._next_look_at = self._clock() + self._pause_s - self._base_s / 2

    def _read(self) -> Stamp | None:
        if self._directory is None:
            return None
        try:
            (self._directory / PROOF).stat()
            return tuple(_stamp_of(self._directory / name) for name in FILES)
        except OSError:
            return None


def _stamp_of(file: Path) -> tuple[int, int, int]:
    try:
        status = file.stat()
    except FileNotFoundError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns
