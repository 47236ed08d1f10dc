"""One launch: what stands of it already, the calls for what is missing, the scheduler's word.

nova answers before its scheduler has looked, and what then finds no host is a server in ERROR. The
scheduler places all servers of a call or none of them, so a call that finds no room is tried again
with half as many.
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

LOOK_BACK = 86400.0
"""Seconds for which a machine of a launch without a date in its name is looked for."""
CLOCK_SLACK = 600.0
"""Seconds by which nova's clock and the head's may differ."""
_POLL = 0.4

Order = Callable[[LaunchSpec, int, Sequence[str]], None]
"""``POST /servers`` for these nodes, which begin at that place of the spec."""


class ServerLaunch:
    """Carries out one spec; used once. ``warned`` may have a refusal from before."""

    def __init__(
        self,
        servers: Servers,
        order: Order,
        warned: Callable[[], ProviderError | None],
        uuid: str,
        spec: LaunchSpec,
        patience: float,
        unconfirmed: UnconfirmedOrders,
    ) -> None:
        self._servers = servers
        self._order = order
        self._warned = warned
        self._uuid = uuid
        self._spec = spec
        self._patience = patience
        self._unconfirmed = unconfirmed
        self._mark = requests.mark(uuid, spec.generation)
        self.standing: dict[str, ServerFields] = {}
        self.refusal: ProviderError | None = None
        self._deleted: set[str] = set()

    def run(self, now: float) -> None:
        """Afterwards ``standing`` has the machines by node, and ``refusal`` why they are fewer."""
        begun, over = self._look_back(now)
        missing = [n for n in self._spec.nodes if n not in self.standing and n not in over]
        self._unconfirmed.require(self._spec, missing)
        if not begun and (told := self._warned()):
            self.refusal = told
            return
        for start, nodes in requests.chunks(self._spec.nodes):
            if any(start <= place < start + len(nodes) for place in begun):
                continue
            self._start(start, nodes)
            if self.refusal is not None:
                return

    def _look_back(self, now: float) -> tuple[set[int], set[str]]:
        """The places where calls of this launch began that were carried out, and the nodes whose
        machines the lists have shown to be over.
        """
        spec = self._spec
        mine = [s for s in self._servers.live(self._mark) if s.generation == spec.generation]
        broken = [s for s in mine if s.failed]
        doubles: list[ServerFields] = []
        # One that is being deleted, or was stopped, is none of a launch's machines any more.
        there = [s for s in mine if not s.failed and state_of(s) in STANDING]
        for one in sorted(there, key=lambda s: (s.created, s.id)):
            if one.node in self.standing:
                doubles.append(one)
            elif one.node in spec.nodes:
                self.standing[one.node] = one
        if doubles:
            # A call that we had given up was carried out after the look-up before its repetition.
            log.warning(
                "ended, started twice generation=%s count=%d", spec.generation, len(doubles)
            )
        self._delete([*broken, *doubles])
        since = (decided_at(spec.generation) or now - LOOK_BACK) - CLOCK_SLACK
        ended = self._servers.ended(self._mark, since)
        # A call makes all its machines or none: what is missing of it has ended since.
        begun = {place[0] for s in mine if (place := self._place(s))}
        begun |= {place[0] for s in ended if s.placed and (place := self._place(s))}
        lost = [s for s in mine if s.failed or state_of(s) not in STANDING]
        return begun, self._over(lost, ended)

    def _over(self, lost: Sequence[ServerFields], ended: Sequence[ServerFields]) -> set[str]:
        """The nodes of these machines, where no later call can have begun at the same place.

        One that asks for fewer does, but only when nova has taken the deletion of all that found
        no host: what it made is another machine for the same node, and may not be listed yet.
        """
        last = [s for s in lost if not (s.failed and s.task in LEAVING)]
        last += [s for s in ended if s.placed]
        starts = {place[0] for s in last if (place := self._place(s))}
        places = [p for s in (*lost, *ended) if (p := self._place(s)) and p[0] in starts]
        return {node for p in places for node in self._spec.nodes[sum(p) : sum(p) + 1]}

    def _place(self, one: ServerFields) -> tuple[int, int] | None:
        return requests.place(one.name, self._uuid, self._spec.generation)

    def _start(self, start: int, nodes: Sequence[str]) -> None:
        """Machines for these nodes; halves where the scheduler has no room for all."""
        have, ceiling = 0, len(nodes) + 1
        until = time.monotonic() + 3 * self._patience
        while have < len(nodes) and ceiling > have + 1:
            whole = ceiling > len(nodes)
            size = len(nodes) - have if whole else (ceiling - have) // 2
            batch = nodes[have : have + size]
            good, refusal = self._batch(start + have, batch)
            self.standing.update(good)
            have += len(good)
            if refusal is None and len(good) < len(batch):
                text = f"the quota left room for {len(good)} of {len(batch)}"
                log.info("launch is cut generation=%s reason=%s", self._spec.generation, text)
                return
            if refusal is None:
                continue
            self.refusal = refusal
            ceiling = have + size
            if good or refusal.code != NO_HOST or time.monotonic() > until:
                return

    def _batch(
        self, start: int, nodes: Sequence[str]
    ) -> tuple[dict[str, ServerFields], ProviderError | None]:
        """One call. In doubt it raises; a refusal with machines means that some failed."""
        try:
            self._order(self._spec, start, nodes)
        except TransientError:
            raise
        except ProviderError as error:
            return {}, error
        try:
            return self._sorted_out(nodes)
        except TransientError:
            raise
        except ProviderError as error:
            # The order was carried out: nothing that goes wrong now may say that it was not.
            text = f"the machines were ordered and cannot be looked after: {error.message}"
            raise TransientError(self._servers.name, error.code, text) from error

    def _sorted_out(
        self, nodes: Sequence[str]
    ) -> tuple[dict[str, ServerFields], ProviderError | None]:
        """The machines of a call that are well; the others are ended, and the first one's fault."""
        made = self._decided_on(nodes)
        self._unconfirmed.listed(self._spec.generation, nodes)
        good = {s.node: s for s in made.values() if not s.failed}
        failed = [s for s in made.values() if s.failed]
        refusal = self._servers.fault(failed[0].id) if failed else None
        if failed:
            log.info(
                "machines failed generation=%s count=%d of=%d error=%s",
                self._spec.generation, len(failed), len(nodes), refusal,
            )  # fmt: skip
            self._delete(failed)
        return good, refusal

    def _decided_on(self, nodes: Sequence[str]) -> dict[str, ServerFields]:
        """The servers of a call by node, when the scheduler has spoken or patience is over.

        Fewer than nodes are believed when they are as many twice: a list may lag behind. None at
        all, where nova has taken the order, is never believed.
        """
        until = time.monotonic() + self._patience
        before = 0
        while True:
            made = {
                s.node: s
                for s in self._servers.live(self._mark)
                if s.generation == self._spec.generation
                and s.node in nodes
                and s.id not in self._deleted
            }
            whole = len(made) == len(nodes) or 1 <= len(made) == before
            if whole and not any(s.waits for s in made.values()):
                return made
            if time.monotonic() > until:
                break
            before = len(made)
            time.sleep(_POLL)
        if not made:
            text = f"nova took the order of {len(nodes)} machines and lists none of them"
            raise TransientError(self._servers.name, "NotListed", text)
        return made

    def _delete(self, some: Sequence[ServerFields]) -> None:
        self._deleted.update(s.id for s in some)
        self._servers.delete([s.id for s in some])
