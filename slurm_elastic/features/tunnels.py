"""Who may reach the head, as the ledger has it (``policies.repair.peers``): the hub is told
whenever that changes, and each round of repair anew. So a crash between any two steps, of ours
or of the hub's, lasts until then.

A machine's public key is believed where its cloud shows it on the machine's console, or
(``enrolment``) where it came by the key that its launch alone was told.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from math import inf
from typing import ClassVar

from slurm_elastic.base.background import submit
from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.config.joining import Enrol, Network
from slurm_elastic.config.tunnel import clouds_with_tunnel, enrols, node_addresses
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.enrolment import Desk
from slurm_elastic.machine.hub.link import by_address
from slurm_elastic.machine.hub.wire import Apply, HubAnswer, HubError, Message, Show, ask
from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.memory import Tunnel
from slurm_elastic.model.protocols import Console
from slurm_elastic.policies.repair.peers import (
    Admission,
    Enrolling,
    Peer,
    admission,
    head_address,
    may_enrol_once,
    newest,
)
from slurm_elastic.state.ledger import Health, LedgerState, Machine

log = logging.getLogger(__name__)

PERIOD = 0.5
"""Seconds between two looks at the ledger."""
PAUSE = 2.0
"""Seconds between two reads of a machine's console."""
READERS = 10
FRESH = 180.0
"""Seconds after a handshake by which a peer that is there has made another."""
ENDED_LATELY = 3600.0
"""Seconds for which a machine that has ended keeps its address from staying let in."""
CONSOLE_READ = 1 << 18
"""Characters of a console, the last ones, that are looked at: clouds keep fewer."""
CORRELATION = "tunnel"
HEALTH = "the network"
"""The name under which the hub's health is kept; no cloud's name, which has no space."""
_PRINTED = re.compile(r"slurm-elastic-tunnel-key (\S{1,80}) (\S{1,80}) ([A-Za-z0-9+/]{43}=)")
Ask = Callable[[Message], HubAnswer]


def printed_key(console: str, one: Instance) -> str:
    """The public key that this machine has printed on its console; "" where it has not."""
    found = _PRINTED.findall(console[-CONSOLE_READ:])
    keys = [
        key for generation, node, key in found if (generation, node) == (one.generation, one.node)
    ]
    return keys[-1] if keys else ""


def join(site: Site) -> Extensions | None:
    """Where machines reach the head through a tunnel; else the network is the site's business."""
    network = site.config.join.network
    if network is None:
        return None
    return Extensions(parts=[("network", lambda worker: Tunnels(site, network, worker))])


class Tunnels(Part):
    """``looks`` is the daemon's task; consoles are read in threads of their own, the ``readers``.
    ``desk`` is where keys are handed in, if anywhere.
    """

    guarded_by: ClassVar[GuardedBy] = {
        "_applying": Guarded("_applied", "_due"),
        # Also held while the trouble is reported: the last report must be of the last answer.
        "_lock": Guarded("_hub_reports"),
    }

    def __init__(
        self,
        site: Site,
        network: Network,
        worker: Executor,
        *,
        hub: Ask | None = None,
        desk: Desk | None = None,
        readers: Executor | None = None,
        pause: float = PAUSE,
    ) -> None:
        self._site, self._network, self._pause = site, network, pause
        self._hub: Ask = hub or (lambda message: ask(network.socket, message))
        self._clouds = clouds_with_tunnel(site.config)
        self._addresses = node_addresses(site.config)
        once = [c for c in site.config.clouds if c.name in self._clouds]
        self._once = {c.name for c in once if enrols(network, c) is Enrol.ONCE}
        self.desk = desk
        if self._once and desk is None:
            self.desk = Desk(site.config.state, head_address(network.subnet), self.handed_in)
        self._readers = readers or ThreadPoolExecutor(READERS, thread_name_prefix="console")
        self._reading: dict[str, Future[None]] = {}
        self._again: dict[str, float] = {}
        self._applying, self._lock = threading.Lock(), threading.Lock()
        self._applied: frozenset[Peer] | None = None
        self._due = -inf
        self._recovered = False
        self._hub_reports = ReportOnce[str]()
        self._key_reports = ReportOnce[tuple[str, str]]()
        self.looks = SiteTask(site, worker, self.look, "the network", period=PERIOD)

    def close(self) -> None:
        """Wait for the consoles that are being read."""
        self._readers.shutdown(wait=True, cancel_futures=True)
        if self.desk is not None:
            self.desk.close()

    def look(self) -> None:
        """Have the hub let in who may come; then look for the keys of the others."""
        if not self._recovered and self._clouds <= self._site.ledger.state().read_whole:
            self._recovered = self._guarded(self._recover)
        if self.desk is not None:
            self.desk.open()
        self._remember()
        self.apply()
        machines = {(m.instance.generation, m.instance.node): m for m in self._live()}
        for one in self._seen().enrolling:
            machine = machines.get((one.generation, one.node))
            if machine is not None and machine.instance.cloud not in self._once:
                self._read(machine.instance)
        self._forget([m.instance for m in machines.values()])

    def apply(self) -> bool:
        """Whether the hub lets in exactly those that may come."""
        return self._guarded(self._apply)

    def _apply(self) -> None:
        with self._applying:
            # As of one moment: a machine that is adopted while its cloud is read for the first
            # time would be shut out if its cloud counted as read already.
            state = self._site.ledger.state()
            unlearnt = self._site.providers.keys() - state.read_whole
            seen, clock = self._seen(state), self._site.monotonic()
            known = (*seen.peers, *self._enrolling(seen))
            peers = (*known, *(self._staying(unlearnt, known, seen.over) if unlearnt else ()))
            if frozenset(peers) == self._applied and clock < self._due:
                return
            # Not known until the hub has answered: after a failure the next look tells it anew.
            self._applied = None
            self._hub(Apply(peers=peers))
            self._applied = frozenset(peers)
            self._due = clock + self._site.config.timings.reconcile
            # Not before the hub has let go of them: a row that is gone is a machine shut out.
            if seen.over:
                self._site.ledger.tunnels.end(seen.over)

    def _seen(self, state: LedgerState | None = None) -> Admission:
        state = self._site.ledger.state() if state is None else state
        tunnels = self._site.ledger.tunnels.all()
        subnet = self._network.subnet if self._network.tunnels else None
        return admission(
            state.machines, state.launches, tunnels, self._addresses, self._clouds, subnet
        )

    def _live(self) -> list[Machine]:
        return self._site.serving_machines()

    def _enrolling(self, seen: Admission) -> list[Peer]:
        """The machines that may hand in their keys, by the keys that are good for that."""
        if self.desk is None:
            return []
        now, cloud_of = self._site.now(), self._cloud_of
        once = [
            e for e in newest(seen.enrolling, (p.address for p in seen.peers))
            if cloud_of(e.node) in self._once and may_enrol_once(e, now)
        ]  # fmt: skip
        keys = [self.desk.public_key(e.generation, e.node) for e in once]
        return [
            Peer(address=e.address, key=key, live=False) for e, key in zip(once, keys, strict=True)
        ]

    def _cloud_of(self, node: str) -> str:
        pool = self._site.pool_of.get(node)
        return pool.cloud if pool is not None else ""

    def _staying(
        self, unlearnt: Set[str], wanted: Sequence[Peer], over: Sequence[Tunnel]
    ) -> list[Peer]:
        """While a new ledger has yet to learn of clouds, who is in stays in: those with a tunnel
        until all clouds with one are learnt, the others until all others are. Not those whose end
        it knows of; ``over``: of these the ones with a tunnel.
        """
        there = self._hub(Show())
        kept: list[Peer] = []
        if unlearnt & self._clouds:
            tunnels = by_address(there.peers).items()
            kept += (Peer(address=at, key=one.key, live=one.live) for at, one in tunnels)
        if unlearnt - self._clouds:
            kept += (Peer(address=at) for at in there.plain)
        addresses = {p.address for p in wanted} | self._ending()
        keys = {p.key for p in wanted if p.key} | {row.key for row in over}
        return [p for p in kept if p.address not in addresses and p.key not in keys]

    def _ending(self) -> set[str]:
        """The addresses of machines that end, or have ended lately."""
        lately = self._site.now() - ENDED_LATELY
        known = self._site.ledger.machines.live(ended_since=lately)
        over = [m for m in known if not m.is_wanted]
        return {m.instance.address for m in over if m.instance.address}

    def _recover(self) -> None:
        """Machines that a lost ledger knew the keys of: the hub knows them still. A key that is in
        any row is another machine's.
        """
        ledger, now = self._site.ledger, self._site.now()
        known = {t.key for t in ledger.tunnels.all()}
        lost = {(e.generation, e.node): e for e in self._seen().enrolling}
        live = {(m.instance.generation, m.instance.node) for m in self._live()}
        lost = {key: one for key, one in lost.items() if key in live}
        if not lost:
            return
        there = by_address(self._hub(Show()).peers)
        for one in lost.values():
            peer = there.get(one.address)
            if peer is None or not peer.live or peer.key in known or peer.handshake < now - FRESH:
                continue
            self._believe(one, peer.key, "the hub has it in still, and the ledger was lost")

    # keys

    def _remember(self) -> None:
        """A machine that was stopped has its key still, on its own disk."""
        had = {
            (m.instance.generation, m.instance.node): m.tunnel_key
            for m in self._live()
            if m.tunnel_key
        }
        for one in self._seen().enrolling if had else ():
            if key := had.get((one.generation, one.node)):
                self._believe(one, key, "it had that key before it was stopped")

    def _read(self, one: Instance) -> None:
        clock, running = self._site.monotonic(), self._reading.get(one.id)
        if running is not None and not running.done():
            return
        if clock < self._again.get(one.id, -inf):
            return
        self._again[one.id] = clock + self._pause
        self._reading[one.id] = submit(
            self._readers, f"console of {one.id}", self._read_console, one
        )

    def _forget(self, living: Sequence[Instance]) -> None:
        """Forget machines that are gone."""
        names, nodes = {one.id for one in living}, {one.node for one in living}
        self._again = {name: at for name, at in self._again.items() if name in names}
        self._reading = {
            name: read for name, read in self._reading.items() if name in names or not read.done()
        }
        self._key_reports.forget_unless(lambda report: report[0] in nodes)

    def _read_console(self, one: Instance) -> None:
        provider = self._site.providers[one.cloud]
        if not isinstance(provider, Console):
            self._tell(one.node, f"cloud {one.cloud} does not show what its machines print")
            return
        try:
            key = printed_key(provider.console(one.id), one)
        except ProviderError as error:
            self._tell(one.node, f"{one.id}: {error}")
            return
        except Exception:
            log.exception("console not read id=%s", one.id)
            return
        address = self._addresses.get(one.node)
        if key and address is not None:
            enrolling = Enrolling(generation=one.generation, node=one.node, address=address)
            if self._believe(enrolling, key, f"{one.id} has printed it on its console"):
                self.apply()

    def handed_in(self, address: str, key: str) -> str:
        """A machine's own key came from that address in the tunnel; "" or why it is not taken."""
        now = self._site.now()
        for one in self._seen().enrolling:
            if one.address == address and may_enrol_once(one, now):
                if not self._believe(one, key, "it came by its launch's own key"):
                    return "refused"
                return "" if self.apply() else "not now"
        log.warning("a key came from who is not to enrol address=%s", address)
        return "refused"

    def _believe(self, one: Enrolling, key: str, why: str) -> bool:
        tunnel = Tunnel(
            generation=one.generation, node=one.node, address=one.address, key=key,
            since=self._site.now(),
        )  # fmt: skip
        wrong = self._site.ledger.tunnels.enrol(tunnel)
        if wrong:
            self._tell(one.node, f"its key is not believed: {wrong}", loud=True)
            return False
        log.info("enrolled node=%s address=%s key=%s", one.node, one.address, key)
        self._site.record(CORRELATION, "enrolled", (one.node,), f"{one.address}: {why}")
        return True

    def _tell(self, node: str, why: str, *, loud: bool = False) -> None:
        """Each once; most only mean that a machine boots."""
        if not self._key_reports.is_news((node, why)):
            return
        log.log(
            logging.ERROR if loud else logging.INFO, "not enrolled node=%s reason=%s", node, why
        )
        if loud:
            self._site.record(CORRELATION, "not-enrolled", (node,), why)

    def _guarded(self, step: Callable[[], None]) -> bool:
        """Whether it went well; what does not is told in the log and in ``status``."""
        trouble = ""
        try:
            step()
        except HubError as error:
            trouble = str(error)
        with self._lock:
            if trouble and self._hub_reports.is_news(HEALTH, trouble):
                log.error("%s", trouble)
                self._report(trouble)
            elif not trouble and self._hub_reports.over(HEALTH):
                self._report("")
        return not trouble

    def _report(self, trouble: str) -> None:
        code = "network" if trouble else None
        health = Health(name=HEALTH, checked=self._site.now(), error=trouble or None, code=code)
        self._site.ledger.health.report(health)
