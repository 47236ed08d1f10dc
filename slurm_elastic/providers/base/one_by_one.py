"""Machines of a cloud whose API makes one a call and takes no idempotency token.

A launch looks for machines that bear its generation, and makes those that are missing one after the
other. Where the lists may lag behind it waits (``unconfirmed``); what a launch has had once it does
not make again. A process that has just started knows of no earlier launch but what lists show: then
``LaunchSpec.again`` has it wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import ClassVar

from msgspec.structs import replace

from slurm_elastic.base.errors import InstanceNotFound, ProviderError, TransientError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.model.cluster import STANDING, Instance, InstanceState, LaunchSpec
from slurm_elastic.providers.base.launched import launched
from slurm_elastic.providers.base.parallel import each
from slurm_elastic.providers.base.statuses import THROTTLED
from slurm_elastic.providers.base.unconfirmed import UnconfirmedOrders

log = logging.getLogger(__name__)

KEPT = 6 * 3600.0
"""Seconds after which no daemon asks again for what a launch has had."""


class OneByOne:
    """The knowledge that one process has of its own calls. Thread-safe.

    ``lag`` (s): for so long a fresh machine may be missing from the cloud's lists.
    ``is_refusal`` tells of a TransientError whether the call has certainly had no effect; by
    default a throttle's. With ``threads`` several calls are made at a time, and none stands for
    another: one that is refused ends the launch only where they come one after the other.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_made", "_ended")}

    def __init__(
        self,
        cloud: str,
        lag: float,
        clock: Callable[[], float] = time.monotonic,
        is_refusal: Callable[[TransientError], bool] = lambda error: error.code == THROTTLED,
        threads: int = 1,
    ) -> None:
        self._threads = threads
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
        """As protocols.Provider has it. ``listed`` are this cluster's machines now, ``make`` is the
        call for one node and raises ProviderErrors.
        """
        standing = self._standing(spec, listed)
        with self._lock:
            missing = [n for n in spec.nodes if (spec.generation, n) not in self._made]
        self._unconfirmed.require(spec, missing)
        doubt = refusal = None
        for machine, error in self._made_for(spec, missing, make):
            if isinstance(error, TransientError):
                doubt = error
            elif isinstance(error, ProviderError):
                refusal = refusal or error
            elif machine is not None:
                standing[machine.node] = machine
        if doubt:
            raise doubt
        machines = [one for node, one in standing.items() if node in spec.nodes]
        return launched(self._cloud, spec, machines, refusal)

    def _made_for(
        self,
        spec: LaunchSpec,
        nodes: Sequence[str],
        make: Callable[[LaunchSpec, str], Instance],
    ) -> Iterator[tuple[Instance | None, BaseException | None]]:
        """A machine or an error for each; none of both where one refusal stands for all."""
        refused = threading.Event()

        def attempt(node: str) -> Instance | None:
            if refused.is_set():
                return None
            try:
                with self._unconfirmed.order(spec.generation, [node], self._had_no_effect):
                    machine = make(spec, node)
            except ProviderError as error:
                if self._threads == 1 and not isinstance(error, TransientError):
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
        """The answer of ``instances``: what we ended is on its way out, whatever the list says.

        ``failed``: ids of machines that the cloud had accepted and could not start. No job can use
        them, and they cost as long as they exist, so ``end`` ends them. An ended machine is
        reported once as TERMINATED. If the cloud refuses the end, the machine is reported as
        STOPPING and ended with the next list.
        """
        over = self._end_failed(listed, failed, end) if failed and end else frozenset()

        def state(machine: Instance) -> InstanceState:
            if machine.id in over:
                return InstanceState.TERMINATED
            return InstanceState.STOPPING if machine.id in failed else machine.state

        return tuple(replace(m, state=state(m)) for m in self._shown(listed))

    def _end_failed(
        self, listed: Sequence[Instance], failed: Collection[str], end: Callable[[str], None]
    ) -> frozenset[str]:
        """The ids of those that were ended now, and not before."""
        with self._lock:
            due = [m for m in listed if m.id in failed and m.id not in self._ended]
        over = set()
        for machine in due:
            log.warning("machine failed after its launch, it is ended cloud=%s id=%s node=%s",
                        self._cloud, machine.id, machine.node)  # fmt: skip
            try:
                self.terminate([machine.id], end)
            except ProviderError as error:
                log.warning("not ended, tried again later cloud=%s error=%s", self._cloud, error)
            else:
                over.add(machine.id)
        return frozenset(over)

    def _shown(self, listed: Sequence[Instance]) -> Sequence[Instance]:
        with self._lock:
            ended = frozenset(self._ended)
            self._ended &= {m.id for m in listed} | {m.id for m, _ in self._made.values()}
        return tuple(
            replace(m, state=InstanceState.STOPPING) if m.id in ended else m
            for m in listed
            if m.state is not InstanceState.TERMINATED
        )

    def terminate(self, ids: Sequence[str], end: Callable[[str], None]) -> None:
        """Each of these, which must be ours. One that is refused keeps no other; InstanceNotFound
        counts as done.
        """
        refusals: list[ProviderError] = []
        for one in dict.fromkeys(ids):
            try:
                end(one)
            except InstanceNotFound:
                pass
            except ProviderError as error:
                text = f"{one}: {error.message}"
                refusals.append(type(error)(self._cloud, error.code, text))
                continue
            with self._lock:
                self._ended.add(one)
        if refusals:
            raise refusals[0]

    def _standing(self, spec: LaunchSpec, listed: Sequence[Instance]) -> dict[str, Instance]:
        """The machines of this launch by node, those included that lists may lack yet."""
        mine = [m for m in self._shown(listed) if m.generation == spec.generation]
        for machine in mine:
            self._note(machine)
        found = {m.node: m for m in mine if m.state in STANDING}
        now = self._clock()
        with self._lock:
            over = self._ended | {m.id for m in listed if m.state not in STANDING}
            for node in spec.nodes:
                made, at = self._made.get((spec.generation, node), (None, 0.0))
                if made and made.id not in over and now - at < self._lag:
                    found.setdefault(node, made)
        return found

    def _note(self, machine: Instance) -> None:
        now = self._clock()
        with self._lock:
            for key in [k for k, (_, at) in self._made.items() if now - at > KEPT + self._lag]:
                del self._made[key]
            self._made.setdefault((machine.generation, machine.node), (machine, now))

    def _had_no_effect(self, error: ProviderError) -> bool:
        return not isinstance(error, TransientError) or self._is_refusal(error)
