"""Machines of a cloud whose API creates one machine per call and takes no idempotency token.

A launch looks for machines that carry its generation, and creates the missing ones one after the
other. If the cloud's listings may lag behind, the launch waits (``unconfirmed``). A node for which
the launch has had a machine gets no second one. After a restart the process knows earlier launches
only from listings, so ``LaunchSpec.is_repeated`` makes it wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from typing import ClassVar

from msgspec.structs import replace

from slurm_elastic.base.errors import InstanceNotFound, ProviderError, TransientError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.model.cluster import STANDING, EndAnswer, Instance, InstanceState, LaunchSpec
from slurm_elastic.providers.base.late import end_failed
from slurm_elastic.providers.base.launched import launched
from slurm_elastic.providers.base.parallel import each, failures
from slurm_elastic.providers.base.statuses import THROTTLED
from slurm_elastic.providers.base.unconfirmed import UnconfirmedOrders

log = logging.getLogger(__name__)

LAUNCH_REMEMBERED_S = 6 * 3600.0
"""After this time no daemon repeats a launch, so its machines can be forgotten."""


class OneByOne:
    """The knowledge of this process about its own calls. Thread-safe.

    ``lag`` (s): for so long a fresh machine may be missing from the cloud's listings.
    ``is_refusal``: whether a call that raised this TransientError has certainly had no effect; by
    default only if it was throttled. ``threads``: above 1, several calls run at the same time, and
    a refusal says nothing about the other calls. With one thread the first refusal ends the launch.
    ``ends_launch``: whether a refusal says that further calls of the launch would be refused, too.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_made", "_ended")}

    def __init__(
        self,
        cloud: str,
        lag: float,
        clock: Callable[[], float] = time.monotonic,
        is_refusal: Callable[[TransientError], bool] = lambda error: error.code == THROTTLED,
        threads: int = 1,
        ends_launch: Callable[[ProviderError], bool] | None = None,
    ) -> None:
        self._threads = threads
        self._ends_launch = ends_launch or (lambda _error: threads == 1)
        self._cloud = cloud
        self._lag = lag
        self._clock = clock
        self._is_refusal = is_refusal
        self._unconfirmed = UnconfirmedOrders(cloud, lag, clock)
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str], tuple[Instance, float]] = {}
        self._ended: set[str] = set()

    def launch(
        self,
        spec: LaunchSpec,
        listed: Sequence[Instance],
        make: Callable[[LaunchSpec, str], Instance],
    ) -> Sequence[Instance]:
        """Launch as protocols.Provider describes it. ``listed``: this cluster's machines as listed
        now. ``make`` is the call for one node and raises ProviderErrors.
        """
        standing = self._standing(spec, listed)
        with self._lock:
            # ``_made`` counts, not ``standing``: an ended machine was the only machine that its
            # node gets in this launch.
            missing = [n for n in spec.nodes if (spec.generation, n) not in self._made]
        self._unconfirmed.require(spec, missing)
        unclear_error = refusal = None
        for machine, error in self._made_for(spec, missing, make):
            if isinstance(error, TransientError):
                unclear_error = error
            elif isinstance(error, ProviderError):
                refusal = refusal or error
            elif machine is not None:
                standing[machine.node] = machine
        # Before the machines are returned: a call without an answer may have started one, so the
        # caller must keep this launch open and repeat it.
        if unclear_error:
            raise unclear_error
        machines = [machine for node, machine in standing.items() if node in spec.nodes]
        return launched(self._cloud, spec, machines, refusal)

    def _made_for(
        self,
        spec: LaunchSpec,
        nodes: Sequence[str],
        make: Callable[[LaunchSpec, str], Instance],
    ) -> Iterator[tuple[Instance | None, BaseException | None]]:
        """Yield a machine or an error for each node. Both are None if a refusal of another node has
        ended the launch.
        """
        refused = threading.Event()

        def attempt(node: str) -> Instance | None:
            if refused.is_set():
                return None
            try:
                with self._unconfirmed.order(spec.generation, [node], self._had_no_effect):
                    machine = make(spec, node)
            except ProviderError as error:
                if not isinstance(error, TransientError) and self._ends_launch(error):
                    refused.set()
                raise
            self._note(machine)
            return machine

        for future in each(nodes, attempt, self._threads):
            error = future.exception()
            if error is not None and not isinstance(error, ProviderError):
                raise error
            yield (None, error) if error else (future.result(), None)

    def shown(
        self,
        listed: Sequence[Instance],
        failed: Collection[str] = (),
        end: Callable[[str], None] | None = None,
    ) -> Sequence[Instance]:
        """The answer of ``instances``. A machine that we have ended is STOPPING, even if the
        listing still shows it as running.

        ``failed``: ids of machines that the cloud had accepted and could not start. No job can use
        them, and they cost as long as they exist, so ``end`` ends them. An ended machine is
        reported once as TERMINATED. If the cloud refuses the end, the machine is reported as
        STOPPING and ended with the next listing.
        """
        just_ended = self._end_failed(listed, failed, end) if failed and end else ()

        def state(machine: Instance) -> InstanceState:
            if machine.id in just_ended:
                return InstanceState.TERMINATED
            return InstanceState.STOPPING if machine.id in failed else machine.state

        return tuple(replace(m, state=state(m)) for m in self._shown(listed))

    def _end_failed(
        self, listed: Sequence[Instance], failed: Collection[str], end: Callable[[str], None]
    ) -> Container[str]:
        """The ids of the failed machines that this call has ended."""
        with self._lock:
            to_end = [m for m in listed if m.id in failed and m.id not in self._ended]
        return end_failed(self._cloud, to_end, lambda id_: self.terminate([id_], end), {})

    def _shown(self, listed: Sequence[Instance]) -> Sequence[Instance]:
        with self._lock:
            ended = frozenset(self._ended)
            # Forget ended machines that neither a listing nor a remembered launch can bring up
            # again.
            self._ended &= {m.id for m in listed} | {m.id for m, _ in self._made.values()}
        return tuple(
            replace(m, state=InstanceState.STOPPING) if m.id in ended else m
            for m in listed
            if m.state is not InstanceState.TERMINATED
        )

    def began(self, generation: str) -> bool:
        """Whether this process has had a machine of the launch."""
        with self._lock:
            return any(made_for == generation for made_for, _ in self._made)

    def terminate(self, ids: Sequence[str], end: Callable[[str], None]) -> dict[str, EndAnswer]:
        """End each of these machines, which must be ours. A refusal does not stop the others;
        afterwards the first refusal is raised. InstanceNotFound means that it is gone.
        """
        unique_ids = list(dict.fromkeys(ids))
        results = each(unique_ids, lambda machine_id: self._end(machine_id, end), self._threads)
        if errors := failures(results):
            # An error of a kind that we do not know comes before refusals.
            raise next((e for e in errors if not isinstance(e, ProviderError)), errors[0])
        return {i: result.result() for i, result in zip(unique_ids, results, strict=True)}

    def _end(self, machine_id: str, end: Callable[[str], None]) -> EndAnswer:
        try:
            end(machine_id)
            answer = EndAnswer.ENDED
        except InstanceNotFound:
            answer = EndAnswer.GONE
        except ProviderError as error:
            # The class of the error is kept, because callers act on it; only the id is added.
            text = f"{machine_id}: {error.message}"
            raise type(error)(self._cloud, error.code, text) from error
        with self._lock:
            # Also after InstanceNotFound: a lagging listing may still show the machine as running.
            self._ended.add(machine_id)
        return answer

    def _standing(self, spec: LaunchSpec, listed: Sequence[Instance]) -> dict[str, Instance]:
        """The live machines of this launch by node, including machines that listings may not show
        yet.
        """
        launch_machines = [m for m in self._shown(listed) if m.generation == spec.generation]
        for listed_machine in launch_machines:
            self._note(listed_machine)
        standing = {m.node: m for m in launch_machines if m.state in STANDING}
        now = self._clock()
        with self._lock:
            ended = self._ended | {m.id for m in listed if m.state not in STANDING}
            for node in spec.nodes:
                machine, made_at = self._made.get((spec.generation, node), (None, 0.0))
                if machine and machine.id not in ended and now - made_at < self._lag:
                    standing.setdefault(node, machine)
        return standing

    def _note(self, machine: Instance) -> None:
        now = self._clock()
        with self._lock:
            # The lag is added, so that no entry goes while its machine may be missing from
            # listings.
            for key in [
                k
                for k, (_, made_at) in self._made.items()
                if now - made_at > LAUNCH_REMEMBERED_S + self._lag
            ]:
                del self._made[key]
            # The first entry stays: its time must not move each time the machine is listed.
            self._made.setdefault((machine.generation, machine.node), (machine, now))

    def _had_no_effect(self, error: ProviderError) -> bool:
        return not isinstance(error, TransientError) or self._is_refusal(error)
