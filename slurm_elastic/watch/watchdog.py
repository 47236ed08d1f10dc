"""The last resort that ends machines: it needs neither the ledger nor slurm-elasticd.

It reads slurm-elasticd's heartbeat file (of two heads both files), Slurm's nodes, and what the
clouds list under this cluster's tags. It remembers only what it saw itself: how long no
slurm-elasticd acted, and how long each machine's node has been powered down. It ends a machine only
if both have lasted for the bound (``policies.repair.unneeded``). If Slurm or a cloud does not
answer, the machines' times start again from zero. If the directory of two heads is away, the
silence does, too.

A copy of the head has everything of the head, and its Slurm has powered down nodes whose machines
work for the original. So no machine ends until the mark of slurm-elasticd has named this host.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, InstanceNotFound, SlurmError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.processes.periodic import PeriodicTask
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.units import brief
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.machine_ends import NotOurMachine
from slurm_elastic.model.cluster import EndAnswer, Instance, InstanceState
from slurm_elastic.model.journal_owner import Host
from slurm_elastic.model.protocols import Provider, Slurm
from slurm_elastic.model.slurm import ON_NODES, SlurmNode
from slurm_elastic.policies.actions import TerminateOrphan
from slurm_elastic.policies.nodes.node_state import is_unneeded
from slurm_elastic.policies.repair.list_plausibility import sanitize_listing
from slurm_elastic.policies.repair.unneeded import Bound, Standing, overdue
from slurm_elastic.state.heartbeat import MARK, Mark, read_mark

log = logging.getLogger(__name__)

NAME = "slurm-elastic-watchdog"
Beat = frozenset[tuple[int, ...]]


class WatchedClouds(Struct, frozen=True, kw_only=True):
    """The configuration's values about the machines. ``kept``: by node whose machine may be stopped
    on purpose, the age (s) that the machine may reach. ``later``: by cloud, so much longer (s) its
    machines stay, because they may have the only copy of jobs' files.
    """

    providers: Mapping[str, Provider]
    kept: Mapping[str, float]
    later: Mapping[str, float]


class Watchdog:
    """Looks at regular times for machines that nothing needs, and ends them.

    With ``dry_run`` it only logs what it would end. ``providers``, ``kept``, ``later``: as in
    ``WatchedClouds``. ``renew``: returns the clouds after the configuration has changed, else None.
    ``others``: returns the two heads' heartbeat files in the directory that both see, of heads that
    act. ``here``: returns this host; None with two heads, where the epoch decides who acts.
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
        later: Mapping[str, float] | None = None,
        renew: Callable[[], WatchedClouds | None] = lambda: None,
        others: Callable[[], Sequence[Path]] = tuple,
        here: Callable[[], Host] | None = None,
        dry_run: bool = False,
    ) -> None:
        self._slurm = slurm
        self._watched = WatchedClouds(providers=providers, kept=kept or {}, later=later or {})
        self._renew = renew
        self._state = state
        self._bound, self._monotonic, self._dry_run = bound, monotonic, dry_run
        self._others, self._here = others, here
        self._is_host_proven = here is None
        self._beat: Beat = frozenset()
        # The silence counts from our start: what happened before, we have not seen.
        self._silent_since = monotonic()
        self._standing: dict[str, Mapping[str, Standing]] = {}
        self._reports = ReportOnce[str]()

    def run(self, stop: threading.Event, every: float) -> None:
        """Look every ``every`` seconds until ``stop``, also after a look that failed."""
        PeriodicTask(NAME, self._look_if_possible, every).run(stop)

    def _look_if_possible(self) -> None:
        try:
            self.look()
        except SlurmError as error:
            self._log_once(f"Slurm cannot be read, nothing is counted: {error}")
            self._standing.clear()
        except OSError as error:
            self._log_once(f"signs of life cannot be looked for, nothing is counted: {error}")
            self._standing.clear()
            self._silent_since = self._monotonic()
        except ConfigError:
            raise  # a wrong user: no later look can succeed, so the service ends
        except Exception:
            log.exception("a check fails, nothing is counted")
            self._standing.clear()

    def look(self) -> None:
        """Look once at everything and end what is overdue. Raises SlurmError if Slurm cannot be
        read.
        """
        self._watched = self._renew() or self._watched
        silence_s = self._silence()
        nodes, busy = self._read_slurm()
        for cloud, provider in self._watched.providers.items():
            instances = self._list(cloud, provider)
            if instances is None:
                # We did not see its machines, so their time does not count: start from zero.
                self._standing.pop(cloud, None)
                continue
            standing_before = self._standing.get(cloud, {})
            candidates = [instance for instance in instances if not self._is_kept(instance)]
            seconds = self._bound.seconds + self._watched.later.get(cloud, 0.0)
            bound = replace(self._bound, seconds=seconds)
            verdict = overdue(nodes, busy, candidates, standing_before, self._monotonic(), bound)
            self._standing[cloud] = verdict.unneeded_since
            if verdict.deferred_count:
                log.error("deletions capped cloud=%s waiting=%d", cloud, verdict.deferred_count)
            # The silence and the time of each machine count side by side, so the later one decides.
            if verdict.ready and silence_s >= bound.seconds:
                self._end(cloud, provider, verdict.ready, instances)

    def _is_kept(self, instance: Instance) -> bool:
        """Return whether the machine was stopped on purpose, as far as a listing shows, and is not
        too old.
        """
        if instance.state is not InstanceState.STOPPED or instance.node not in self._watched.kept:
            return False
        return time.time() - instance.launched <= self._watched.kept[instance.node]

    def _silence(self) -> float:
        """Return for how many seconds we have seen no heartbeat of slurm-elasticd."""
        beat, now = self._read_beat(), self._monotonic()
        if doubt := self._doubt_of_head(read_mark(self._state)):
            self._beat, self._silent_since = beat, now
            self._log_once(f"no machine ends: {doubt}")
            return 0.0
        if beat != self._beat:
            self._beat, self._silent_since = beat, now
        silence_s = now - self._silent_since
        if silence_s < self._bound.seconds:
            self._reports.clear(NAME)
        else:
            self._log_once(
                f"slurm-elasticd has given no sign of life for {brief(self._bound.seconds)}"
            )
        return silence_s

    def _doubt_of_head(self, mark: Mark | None) -> str:
        """Why this may be a copy of the head, whose watchdog would end the machines of the
        original; "" if it is proven not to be.
        """
        if mark is not None and mark.is_other_head:
            # A person stops slurm-elasticd on the copy of a head, and its last word stands.
            return mark.why
        if mark is not None and self._here is not None:
            self._is_host_proven = mark.host is not None and mark.host.may_be(self._here())
        # Without a mark, as when the disk is away, the earlier proof counts: only a restart copies.
        if self._is_host_proven:
            return ""
        return (
            "slurm-elasticd has not worked on this host, which may be a copy of the head "
            f"({self._state / MARK})"
        )

    def _read_beat(self) -> Beat:
        """Return the state of the heartbeat files.

        A file that does not exist, or whose disk is away, counts as no heartbeat. Raises
        ConfigError if we may not look at a file, and OSError if the directory of two heads is away:
        neither proves silence.
        """
        paths = [self._state / MARK, *self._others()]
        mark = read_mark(self._state)
        # slurm-elasticd renews its mark also on a head that stands by, and ends no machine there.
        if mark is not None and not mark.acts:
            del paths[0]
        return frozenset(beat for path in paths if (beat := _file_state(path)))

    def _read_slurm(self) -> tuple[Mapping[str, SlurmNode], frozenset[str]]:
        nodes = self._slurm.nodes()
        # With an empty list every machine would look unneeded.
        if not nodes:
            raise SlurmError(("sinfo",), 0, "Slurm lists no node at all")
        jobs = self._slurm.jobs()
        return nodes, frozenset(n for job in jobs if job.states & ON_NODES for n in job.nodes)

    def _list(self, cloud: str, provider: Provider) -> Sequence[Instance] | None:
        """Return the machines whose tags make sense; None if the cloud cannot be read."""
        try:
            return sanitize_listing(provider.instances(), lambda _: 0.0, time.time()).machines
        except Exception as error:  # noqa: BLE001 - after any error there is no list
            log.warning("cloud cannot be read cloud=%s error=%s", cloud, error)
            return None

    def _end(
        self,
        cloud: str,
        provider: Provider,
        ready: Sequence[TerminateOrphan],
        instances: Sequence[Instance],
    ) -> None:
        """End the machines that Slurm still does not need: reading the cloud took a while."""
        nodes, busy = self._read_slurm()
        node_of = {instance.id: instance.node for instance in instances}
        actions = [
            action
            for action in ready
            if (node := node_of[action.machine]) in nodes
            and node not in busy
            and is_unneeded(nodes[node])
        ]
        # slurm-elasticd may have started again while we read the cloud. Then it decides.
        if not actions or (self._read_beat() != self._beat):
            return
        verb = "would end" if self._dry_run else "ends"
        ids_by_cause: defaultdict[AnyCause, list[str]] = defaultdict(list)
        for action in actions:
            ids_by_cause[action.cause].append(action.machine)
        for cause, ids in ids_by_cause.items():
            ended_nodes = compress({node_of[id_] for id_ in ids})
            log.warning(
                "%s cloud=%s nodes=%s ids=%s reason=%s", verb, cloud, ended_nodes, ids, cause
            )
        if not self._dry_run:
            _terminate(cloud, provider, [action.machine for action in actions])

    def _log_once(self, text: str) -> None:
        """Log the text once for as long as the state lasts."""
        if self._reports.is_news(NAME, text):
            log.warning("%s", text)


def _terminate(cloud: str, provider: Provider, ids: Sequence[str]) -> None:
    """End the machines in one call. A failure is logged, and the next look tries again."""
    try:
        answers = provider.terminate(ids)
    except InstanceNotFound:
        log.info("already gone cloud=%s ids=%s", cloud, list(ids))
    except Exception as error:  # noqa: BLE001 - after any error the next look tries again
        log.error("terminate fails, the next check asks again: %s", error)  # noqa: TRY400
    else:
        for id_, answer in answers.items():
            if answer is EndAnswer.NOT_OURS:
                log.error("machine not ended cloud=%s: %s", cloud, NotOurMachine(machine=id_))


def _file_state(path: Path) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except PermissionError as error:
        raise ConfigError(
            f"{path} cannot be read by uid {os.geteuid()}: run {NAME} as SlurmUser"
        ) from error
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_mtime_ns
