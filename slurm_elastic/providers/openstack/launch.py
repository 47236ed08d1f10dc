"""One launch: find the machines that it has already, order the missing ones, and wait for the
scheduler.

nova answers before its scheduler has looked for hosts. A server for which it finds no host ends in
ERROR. The scheduler places either all servers of a call or none, so a call that finds no room is
repeated with half as many servers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from slurm_elastic.base.errors import ProviderError, TransientError
from slurm_elastic.model.cluster import STANDING, LaunchSpec
from slurm_elastic.providers.base.tags import decided_at
from slurm_elastic.providers.base.unconfirmed import UnconfirmedOrders
from slurm_elastic.providers.openstack import requests
from slurm_elastic.providers.openstack.convert import LEAVING, ServerFields, state_of
from slurm_elastic.providers.openstack.errors import NO_HOST
from slurm_elastic.providers.openstack.instances import Servers

log = logging.getLogger(__name__)

LOOK_BACK_S = 86400.0
"""So far back we search for machines of a launch without a date in its generation."""
CLOCK_SLACK_S = 600.0
"""nova's clock and the head's clock may differ by so much."""
_POLL_EVERY_S = 0.4

Order = Callable[[LaunchSpec, int, Sequence[str]], None]
"""``POST /servers`` for these nodes, which begin at this place in the spec."""


class ServerLaunch:
    """Carries out one spec; used once. ``warned`` returns a recent failure to start machines of
    this type, or None. ``schedule_wait_s``: how long the scheduler may take.
    """

    def __init__(
        self,
        servers: Servers,
        order: Order,
        warned: Callable[[], ProviderError | None],
        uuid: str,
        spec: LaunchSpec,
        schedule_wait_s: float,
        unconfirmed: UnconfirmedOrders,
    ) -> None:
        self._servers = servers
        self._order = order
        self._warned = warned
        self._uuid = uuid
        self._spec = spec
        self._schedule_wait_s = schedule_wait_s
        self._unconfirmed = unconfirmed
        self._mark = requests.mark(uuid, spec.generation)
        self.standing: dict[str, ServerFields] = {}
        self.refusal: ProviderError | None = None
        self._deleted: set[str] = set()

    def run(self, now: float) -> None:
        """Carry out the launch. Afterwards ``standing`` has the machines by node, and ``refusal``
        the reason if there are fewer machines than nodes.
        """
        begun_places, ended_nodes = self._look_back(now)
        missing = [n for n in self._spec.nodes if n not in self.standing and n not in ended_nodes]
        self._unconfirmed.require(self._spec, missing)
        if not begun_places and (warning := self._warned()):
            self.refusal = warning
            return
        for start, nodes in requests.chunks(self._spec.nodes):
            # nova carries out a call as a whole. Repeating a started call would start its machines
            # twice.
            if any(start <= place < start + len(nodes) for place in begun_places):
                continue
            self._start(start, nodes)
            if self.refusal is not None:
                return

    def _look_back(self, now: float) -> tuple[set[int], set[str]]:
        """Find the earlier calls of this launch. Returns the places at which calls began that were
        carried out, and the nodes whose machines have ended, as listings show.
        """
        spec = self._spec
        launch_servers = [
            s for s in self._servers.live(self._mark) if s.generation == spec.generation
        ]
        broken = [s for s in launch_servers if s.failed]
        duplicates: list[ServerFields] = []
        # A stopped server, or a server in deletion, no longer serves the launch.
        running = [s for s in launch_servers if not s.failed and state_of(s) in STANDING]
        for server in sorted(running, key=lambda s: (s.created, s.id)):
            if server.node in self.standing:
                duplicates.append(server)
            elif server.node in spec.nodes:
                self.standing[server.node] = server
        if duplicates:
            # nova carried out a call that we had given up, after we had looked for its servers and
            # before we repeated it.
            log.warning(
                "second machines of nodes ended generation=%s count=%d",
                spec.generation,
                len(duplicates),
            )
        self._delete([*broken, *duplicates])
        since_time = (decided_at(spec.generation) or now - LOOK_BACK_S) - CLOCK_SLACK_S
        ended = self._servers.ended(self._mark, since_time)
        # A call creates all its machines or none, so machines missing from it have ended since.
        begun_places = {place[0] for s in launch_servers if (place := self._place(s))}
        begun_places |= {place[0] for s in ended if s.placed and (place := self._place(s))}
        lost = [s for s in launch_servers if s.failed or state_of(s) not in STANDING]
        return begun_places, self._ended_nodes(lost, ended)

    def _ended_nodes(self, lost: Sequence[ServerFields], ended: Sequence[ServerFields]) -> set[str]:
        """The nodes of these machines, unless a later call may have begun at the same place.

        A repetition with fewer servers begins at the same place, but only after nova has accepted
        the deletion of all servers that found no host. This repetition creates another machine for
        the same node, and listings may not show it yet.
        """
        final = [s for s in lost if not (s.failed and s.task in LEAVING)]
        final += [s for s in ended if s.placed]
        starts = {place[0] for s in final if (place := self._place(s))}
        places = [p for s in (*lost, *ended) if (p := self._place(s)) and p[0] in starts]
        return {node for p in places for node in self._spec.nodes[sum(p) : sum(p) + 1]}

    def _place(self, server: ServerFields) -> tuple[int, int] | None:
        return requests.place(server.name, self._uuid, self._spec.generation)

    def _start(self, start: int, nodes: Sequence[str]) -> None:
        """Start machines for these nodes. If the scheduler has no room for all, try with half as
        many.
        """
        started_count, ceiling = 0, len(nodes) + 1
        give_up_at = time.monotonic() + 3 * self._schedule_wait_s
        while started_count < len(nodes) and ceiling > started_count + 1:
            is_untried = ceiling > len(nodes)
            size = len(nodes) - started_count if is_untried else (ceiling - started_count) // 2
            batch = nodes[started_count : started_count + size]
            started, refusal = self._order_batch(start + started_count, batch)
            self.standing.update(started)
            started_count += len(started)
            if refusal is None and len(started) < len(batch):
                text = f"the quota left room for {len(started)} of {len(batch)}"
                log.info(
                    "launch gets fewer machines generation=%s reason=%s",
                    self._spec.generation,
                    text,
                )
                return
            if refusal is None:
                continue
            self.refusal = refusal
            ceiling = started_count + size
            if started or refusal.code != NO_HOST or time.monotonic() > give_up_at:
                return

    def _order_batch(
        self, start: int, nodes: Sequence[str]
    ) -> tuple[dict[str, ServerFields], ProviderError | None]:
        """Order the servers for ``nodes`` in one call. Raises TransientError if its outcome is
        unknown. A refusal together with machines means that some of them failed.
        """
        try:
            self._order(self._spec, start, nodes)
        except TransientError:
            raise
        except ProviderError as error:
            return {}, error
        try:
            return self._split_by_result(nodes)
        except TransientError:
            raise
        except ProviderError as error:
            # nova has carried out the order, so no later error may say that it was refused.
            text = f"the machines were ordered and cannot be looked after: {error.message}"
            raise TransientError(self._servers.name, error.code, text) from error

    def _split_by_result(
        self, nodes: Sequence[str]
    ) -> tuple[dict[str, ServerFields], ProviderError | None]:
        """The machines of a call that started. The failed machines are deleted, and the first
        failure is returned.
        """
        listed = self._await_scheduler(nodes)
        self._unconfirmed.listed(self._spec.generation, nodes)
        started = {s.node: s for s in listed.values() if not s.failed}
        failed = [s for s in listed.values() if s.failed]
        refusal = self._servers.fault(failed[0].id) if failed else None
        if failed:
            log.info(
                "machines failed generation=%s count=%d of=%d error=%s",
                self._spec.generation, len(failed), len(nodes), refusal,
            )  # fmt: skip
            self._delete(failed)
        return started, refusal

    def _await_scheduler(self, nodes: Sequence[str]) -> dict[str, ServerFields]:
        """The servers of a call by node, after the scheduler has decided or the time is over.

        Fewer servers than nodes are accepted only if two listings in a row show the same number,
        because a listing may lag behind. If nova has accepted the order, an empty listing is never
        accepted.
        """
        give_up_at = time.monotonic() + self._schedule_wait_s
        last_count = 0
        while True:
            listed = {
                s.node: s
                for s in self._servers.live(self._mark)
                if s.generation == self._spec.generation
                and s.node in nodes
                and s.id not in self._deleted
            }
            is_complete = len(listed) == len(nodes) or 1 <= len(listed) == last_count
            if is_complete and not any(s.waits for s in listed.values()):
                return listed
            if time.monotonic() > give_up_at:
                break
            last_count = len(listed)
            time.sleep(_POLL_EVERY_S)
        if not listed:
            text = f"nova took the order of {len(nodes)} machines and lists none of them"
            raise TransientError(self._servers.name, "NotListed", text)
        return listed

    def _delete(self, servers: Sequence[ServerFields]) -> None:
        self._deleted.update(s.id for s in servers)
        self._servers.delete([s.id for s in servers])
