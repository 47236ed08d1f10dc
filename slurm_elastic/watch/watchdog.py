"""The last one who ends machines: it needs neither the ledger nor slurm-elasticd.

It looks at slurm-elasticd's sign of life (of two heads at both), at Slurm's nodes and at what the
clouds list under this cluster's tags. It remembers only its own looks: since when there was no sign
of life, and since when each machine's node is powered down. It ends machines only if both have
lasted for the bound (``policies.repair.unneeded``). If Slurm or a cloud does not answer, counting
begins anew.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, InstanceNotFound, SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.periodic import PeriodicTask
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.units import brief
from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.model.protocols import Provider, Slurm
from slurm_elastic.model.slurm import ON_NODES, SlurmNode
from slurm_elastic.policies.actions import TerminateOrphan
from slurm_elastic.policies.nodes.node_state import is_unneeded
from slurm_elastic.policies.repair.list_plausibility import sound
from slurm_elastic.policies.repair.unneeded import Bound, Standing, overdue
from slurm_elastic.state.heartbeat import MARK

log = logging.getLogger(__name__)

NAME = "slurm-elastic-watchdog"
Beat = frozenset[tuple[int, ...]]


class Watchdog:
    """Looks again and again; with ``dry_run`` it only says what it would end. ``kept``: for nodes
    whose machine may be stopped on purpose, how old (s) it may get. ``others``: the signs of life
    of two heads in the directory that both see.
    """

    def __init__(
        self,
        slurm: Slurm,
        providers: Mapping[str, Provider],
        state: Path,
        bound: Bound,
        monotonic: Callable[[], float],
        *,
        kept: Mapping[str, float] | None = None,
        others: Callable[[], Sequence[Path]] = tuple,
        dry_run: bool = False,
    ) -> None:
        self._slurm, self._providers = slurm, providers
        self._mark = state / MARK
        self._bound, self._monotonic, self._dry_run = bound, monotonic, dry_run
        self._kept = kept or {}
        self._others = others
        self._beat: Beat = frozenset()
        # By our own looks alone: what was before our start nobody here has seen.
        self._silent_since = monotonic()
        self._standing: dict[str, Mapping[str, Standing]] = {}
        self._reports = ReportOnce[str]()

    def run(self, stop: threading.Event, every: float) -> None:
        """Look until ``stop``. Whatever goes wrong in one look, the next one starts anew."""
        PeriodicTask(NAME, self._look_if_possible, every).run(stop)

    def _look_if_possible(self) -> None:
        try:
            self.look()
        except SlurmError as error:
            self._say(f"Slurm cannot be read, nothing is counted: {error}")
            self._standing.clear()
        except OSError as error:
            self._say(f"signs of life cannot be looked for, nothing is counted: {error}")
            self._standing.clear()
            self._silent_since = self._monotonic()
        except ConfigError:
            raise
        except Exception:
            log.exception("a look fails, nothing is counted")
            self._standing.clear()

    def look(self) -> None:
        """One look at everything. SlurmError is passed on; nothing was ended then."""
        silent = self._silence()
        nodes, busy = self._read_slurm()
        for cloud, provider in self._providers.items():
            seen = self._list(cloud, provider)
            if seen is None:
                # What a cloud did not answer begins its count anew.
                self._standing.pop(cloud, None)
                continue
            before = self._standing.get(cloud, {})
            awake = [one for one in seen if not self._is_kept(one)]
            verdict = overdue(nodes, busy, awake, before, self._monotonic(), self._bound)
            self._standing[cloud] = verdict.standing
            if verdict.waiting:
                log.error("deletions capped cloud=%s waiting=%d", cloud, verdict.waiting)
            if verdict.ready and silent >= self._bound.seconds:
                self._end(cloud, provider, verdict.ready, seen)

    def _is_kept(self, one: Instance) -> bool:
        """Whether it was stopped on purpose, as far as a list can tell, and is not too old."""
        if one.state is not InstanceState.STOPPED or one.node not in self._kept:
            return False
        return time.time() - one.launched <= self._kept[one.node]

    def _silence(self) -> float:
        """For how many seconds slurm-elasticd has given no sign of life, by our own looks."""
        beat, now = self._read_beat(), self._monotonic()
        if beat != self._beat:
            self._beat, self._silent_since = beat, now
        silent = now - self._silent_since
        if silent < self._bound.seconds:
            self._reports.over(NAME)
        else:
            self._say(f"slurm-elasticd has given no sign of life for {brief(self._bound.seconds)}")
        return silent

    def _read_beat(self) -> Beat:
        """The state of the files that slurm-elasticd keeps writing; nothing of one that is not
        there, or whose disk is away. That we may not look is an error, as it would prove nothing,
        and so is a directory of two heads that is away.
        """
        return frozenset(found for path in (self._mark, *self._others()) if (found := _seen(path)))

    def _read_slurm(self) -> tuple[Mapping[str, SlurmNode], frozenset[str]]:
        nodes = self._slurm.nodes()
        if not nodes:
            raise SlurmError(("sinfo",), 0, "Slurm lists no node at all")
        jobs = self._slurm.jobs()
        return nodes, frozenset(n for job in jobs if job.states & ON_NODES for n in job.nodes)

    def _list(self, cloud: str, provider: Provider) -> Sequence[Instance] | None:
        """The machines whose tags make sense; None if the cloud cannot be read."""
        try:
            return sound(provider.instances(), lambda _: 0.0, time.time()).machines
        except Exception as error:  # noqa: BLE001 - whatever it raises, it is no list
            log.warning("cloud cannot be read cloud=%s error=%s", cloud, error)
            return None

    def _end(
        self,
        cloud: str,
        provider: Provider,
        ready: Sequence[TerminateOrphan],
        seen: Sequence[Instance],
    ) -> None:
        """End those machines that Slurm still does not need, as reading the cloud took a while."""
        nodes, busy = self._read_slurm()
        node_of = {one.id: one.node for one in seen}
        still = [
            action
            for action in ready
            if (node := node_of[action.machine]) in nodes
            and node not in busy
            and is_unneeded(nodes[node])
        ]
        # The daemon may have come back while the cloud was read.
        if not still or (self._read_beat() != self._beat):
            return
        how = "would end" if self._dry_run else "ends"
        ids_by_reason: defaultdict[str, list[str]] = defaultdict(list)
        for action in still:
            ids_by_reason[action.reason].append(action.machine)
        for reason, ids in ids_by_reason.items():
            ended_nodes = compress({node_of[id_] for id_ in ids})
            log.warning(
                "%s cloud=%s nodes=%s ids=%s reason=%s", how, cloud, ended_nodes, ids, reason
            )
        if not self._dry_run:
            _terminate(cloud, provider, [action.machine for action in still])

    def _say(self, what: str) -> None:
        """Log it once for as long as it lasts."""
        if self._reports.is_news(NAME, what):
            log.warning("%s", what)


def _terminate(cloud: str, provider: Provider, ids: Sequence[str]) -> None:
    """End the machines in one call. A failure is logged, and the next look tries again."""
    try:
        provider.terminate(ids)
    except InstanceNotFound:
        log.info("already gone cloud=%s ids=%s", cloud, list(ids))
    except Exception as error:  # noqa: BLE001 - whatever it raises, the next look asks again
        log.error("terminate fails, the next look asks again: %s", error)  # noqa: TRY400


def _seen(path: Path) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except PermissionError as error:
        raise ConfigError(
            f"{path} may not be looked at by uid {os.geteuid()}: run {NAME} as SlurmUser"
        ) from error
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns
