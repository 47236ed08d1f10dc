"""Spares Slurm from looks at queue and nodes while nothing happens: the interval doubles up to a
maximum (vcluster 2013 probes at growing intervals, too).

slurmctld writes FILES in StateSaveLocation within seconds after any change of a job or a node, and
every five minutes. While the files stay the same, no job was submitted, started or ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from math import inf
from pathlib import Path

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client import acting, siteconf
from slurm_elastic.state.ledger import Ledger

log = logging.getLogger(__name__)

FILES = ("job_state", "node_state")
PROOF = "clustername"
"""The file that slurmctld writes before all others. A directory without this file is not the right
one.
"""
STALE_S = 1800.0
"""Age (s) from which files are of no use: slurmctld does not run, or its directory is now another
one.
"""
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


def seconds_to_work(jobs: Iterable[SlurmJob], partitions: Collection[str], now: float) -> float:
    """Seconds until a pending job may need a node in one of these partitions: 0 if one waits now,
    infinity if none waits.

    A job counts although growth leaves it out now: the reason may change with time alone, without
    any change in Slurm's files.
    """
    begins = (
        max(job.begin - now, 0.0)
        for job in jobs
        if "PENDING" in job.states and not set(job.partitions).isdisjoint(partitions)
    )
    return min(begins, default=inf)


def orders_of(ledger: Ledger, now: float) -> object:
    """The rows of the ledger that a person may change. Two results are equal if no person changed a
    row and no order began or ended in between.
    """
    orders = ledger.directives.all()
    in_force = [order.number for order in orders if order.holds(now)]
    return orders, in_force, ledger.exclusions.all(), ledger.growth_guard.rows()


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
        self._orders: object = None
        self._next_look_at = clock()

    def is_needed(self, orders: object = None) -> bool:
        """Whether to look now. If so, call ``looked`` afterwards, unless the look failed.
        ``orders``: the orders of people; a change of them makes a look needed.
        """
        stamp = self._read()
        is_same = stamp is not None and stamp == self._stamp and orders == self._orders
        if is_same and self._clock() < self._next_look_at:
            return False
        # Before Slurm is read: a job that comes during the look changes the file once more. Without
        # a successful look the next one is needed, too.
        self._stamp, self._orders, self._next_look_at = stamp, orders, self._clock()
        return True

    def looked(self, *, is_quiet: bool, work_in_s: float = inf) -> None:
        """Note a look. ``is_quiet``: there was nothing to decide on. ``work_in_s``: seconds until
        there will be something to decide on, as far as we know.
        """
        self._pause_s = min(2 * self._pause_s, self._longest_s) if is_quiet else self._base_s
        # A little less, so that the look at the end of the pause does not miss it.
        pause_s = min(self._pause_s - self._base_s / 2, work_in_s)
        self._next_look_at = self._clock() + pause_s

    def _read(self) -> Stamp | None:
        if self._directory is None:
            return None
        try:
            # If StateSaveLocation is not mounted, both files are missing, as at a site without
            # jobs. Only this file tells the two apart.
            (self._directory / PROOF).stat()
            stamp = tuple(_stamp_of(self._directory / name) for name in FILES)
        except OSError:
            return None
        written_at = max(file_stamp[2] for file_stamp in stamp) / 1e9
        is_stale = written_at > 0 and time.time() - written_at > STALE_S
        return None if is_stale else stamp


def _stamp_of(file: Path) -> tuple[int, int, int]:
    try:
        status = file.stat()
    except FileNotFoundError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns
