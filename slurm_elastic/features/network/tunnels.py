"""Tells the hub which machines may reach the head, according to the ledger
(``policies.repair.peers``). The hub gets the whole list when it changes, and again in each repair
interval, which repairs the effects of any crash of ours or of the hub's.

A machine's public key is accepted if its cloud shows it on the machine's console, or
(``enrolment``) if it came through the enrolment key that only its launch got.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.processes.background import submit
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.shared_dict import SharedDict
from slurm_elastic.config.sections.joining import Enrol, Network
from slurm_elastic.config.tunnel import clouds_with_tunnel, enrols
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.network.enrolment import Desk
from slurm_elastic.features.network.tunnel_keys import flaw_of, printed_key
from slurm_elastic.machine.hub.link import by_address
from slurm_elastic.machine.hub.wire import Apply, HubAnswer, HubError, Message, Show, ask
from slurm_elastic.model.causes.joining import (
    KeyBeforeStop,
    KeyDoubted,
    KeyHandedIn,
    KeyOfHub,
    KeyOnConsole,
    TunnelKeySource,
)
from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.memory import Tunnel
from slurm_elastic.model.protocols import Console
from slurm_elastic.policies.repair.peers import (
    Admission,
    Enrolling,
    admission,
    may_enrol_once,
    newest,
)
from slurm_elastic.policies.repair.tunnel_addresses import TunnelPeer, endpoint_of, head_address
from slurm_elastic.state.ledger import Health, LedgerState, Machine

log = logging.getLogger(__name__)

PERIOD_S = 0.5
"""Seconds between two looks at the ledger."""
CONSOLE_PAUSE_S = 2.0
"""Seconds between two reads of a machine's console."""
READERS = 10
HANDSHAKE_MAX_AGE_S = 180.0
"""A connected peer repeats its handshake within this many seconds."""
ENDED_LATELY_S = 3600.0
"""Seconds after a machine's end during which the hub keeps no peer at its address.
"""
CORRELATION = "tunnel"
HEALTH = "the network"
"""The name of the hub's health in the ledger. No cloud can have it: their names have no space."""
Ask = Callable[[Message], HubAnswer]


def join(site: Site) -> Extensions | None:
    """Join if slurm-elastic manages the network (``join.network``)."""
    network = site.config.join.network
    if network is None:
        return None
    outside = SharedDict[str, str]()

    def note_outside(cloud: str, machines: Sequence[Instance]) -> tuple[Instance, ...]:
        del cloud
        for machine in machines:
            if machine.public_address:
                outside[machine.id] = machine.public_address
            else:
                outside.setdefault(machine.id, "")
        return tuple(machines)

    return Extensions(
        parts=[("network", lambda worker: TunnelsPart(site, network, worker, outside=outside))],
        complete_listed=[note_outside] if network.head_opens or network.firewall else [],
    )


class TunnelsPart(Part):
    """``task``: the periodic task that the daemon runs. ``readers``: threads that read consoles.
    ``desk``: where machines hand in their keys, None if they do not. ``outside``: by machine id,
    its public or floating address as its cloud last listed it ("": it has none).
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
        outside: SharedDict[str, str] | None = None,
        pause: float = CONSOLE_PAUSE_S,
    ) -> None:
        self._site, self._network, self._pause = site, network, pause
        self._hub: Ask = hub or (lambda message: ask(network.socket, message))
        self._clouds = clouds_with_tunnel(site.config)
        self._addresses = site.tunnel_addresses
        tunnelled = [c for c in site.config.clouds if c.name in self._clouds]
        self._once = {c.name for c in tunnelled if enrols(network, c) is Enrol.ONCE}
        self._outside = SharedDict[str, str]() if outside is None else outside
        self.desk = desk
        if self._once and desk is None:
            self.desk = Desk(site.config.state, head_address(network.subnet), self.handed_in)
        self._readers = readers or ThreadPoolExecutor(READERS, thread_name_prefix="console")
        self._reading: dict[str, Future[None]] = {}
        self._retry_at: dict[str, float] = {}
        self._applying, self._lock = threading.Lock(), threading.Lock()
        self._applied: frozenset[TunnelPeer] | None = None
        self._due = -inf
        self._recovered = False
        self._hub_reports = ReportOnce[str]()
        self._left_out_reports = ReportOnce[str]()
        self._key_reports = ReportOnce[tuple[str, str | KeyDoubted]]()
        self.task = SiteTask(site, worker, self.look, "the network", period=PERIOD_S)

    def close(self) -> None:
        """Wait for the running reads of consoles, and close the desk."""
        self._readers.shutdown(wait=True, cancel_futures=True)
        if self.desk is not None:
            self.desk.close()

    def look(self) -> None:
        """Update the hub's list of peers. Then read the consoles of machines without a key."""
        if not self._recovered and self._clouds <= self._site.ledger.state().read_whole:
            self._recovered = self._report_trouble(self._recover)
        if self.desk is not None:
            self.desk.open()
        self._restore_restarted()
        self.apply()
        machines = {(m.instance.generation, m.instance.node): m for m in self._live()}
        for enrolling in self._admission().enrolling:
            machine = machines.get((enrolling.generation, enrolling.node))
            if machine is not None and machine.instance.cloud not in self._once:
                self._start_reading(machine.instance)
        self._forget([m.instance for m in machines.values()])

    def apply(self) -> bool:
        """Send the peers to the hub if needed. Return whether the hub has them."""
        return self._report_trouble(self._apply)

    def _apply(self) -> None:
        with self._applying:
            # Read machines and read clouds at one moment. While a cloud is read for the first time,
            # its machines are being adopted. A machine would be shut out if its cloud counted as
            # read before the machine was in the ledger.
            state = self._site.ledger.state()
            unread_clouds = self._site.providers.keys() - state.read_whole
            unread_clouds |= self._clouds_without_addresses(state.machines)
            admitted, clock = self._admission(state), self._site.monotonic()
            called_peers = self._with_endpoints(admitted.peers, state.machines)
            admitted_peers = (*called_peers, *self._enrolling_peers(admitted))
            peers = admitted_peers
            if unread_clouds:
                peers += tuple(self._staying_peers(unread_clouds, admitted_peers, admitted.over))
            if frozenset(peers) == self._applied and clock < self._due:
                return
            # Unknown until the hub has answered. After a failure the next look sends the list
            # again.
            self._applied = None
            self._note_left_out(self._hub(Apply(peers=peers)).left_out)
            self._applied = frozenset(peers)
            self._due = clock + self._site.config.timings.reconcile_interval
            # Delete the rows only after the hub has removed the peers. Otherwise a crash in between
            # would leave peers in the hub that the ledger does not know.
            if admitted.over:
                self._site.ledger.tunnels.end(admitted.over)

    def _clouds_without_addresses(self, machines: Iterable[Machine]) -> set[str]:
        """The clouds without a tunnel that have not listed a machine since our start. It may reach
        the head from an address that only the cloud knows.
        """
        if self._network.firewall is None:
            return set()
        listed = self._outside.snapshot()
        return {
            m.instance.cloud
            for m in machines
            if m.is_wanted and m.instance.cloud not in self._clouds and m.instance.id not in listed
        }

    def _note_left_out(self, left_out: Mapping[str, str]) -> None:
        """Log each peer once that the hub has left out. The hub has admitted all others."""
        self._left_out_reports.forget_unless(left_out.__contains__)
        for address, reason in left_out.items():
            if self._left_out_reports.is_news(address, reason):
                log.error("the hub leaves a machine out address=%s reason=%s", address, reason)

    def _with_endpoints(
        self, peers: Sequence[TunnelPeer], machines: Iterable[Machine]
    ) -> tuple[TunnelPeer, ...]:
        """The peers with the places outside that the head calls, if it opens the tunnels."""
        if not self._network.head_opens:
            return tuple(peers)
        # In the ledger a machine with a tunnel has its address in the tunnel.
        outside = self._outside.snapshot()
        port, inside = self._network.udp_port, self._network.inside
        endpoints = {
            m.instance.address: endpoint_of(outside.get(m.instance.id, ""), port, inside)
            for m in machines
            if m.is_wanted
        }
        return tuple(
            replace(p, endpoint=endpoints.get(p.address, "")) if p.key else p for p in peers
        )

    def _admission(self, state: LedgerState | None = None) -> Admission:
        state = self._site.ledger.state() if state is None else state
        tunnels = self._site.ledger.tunnels.all()
        subnet = self._network.subnet if self._network.tunnels else None
        return admission(
            state.machines, state.launches, tunnels, self._addresses, self._clouds, subnet,
            self._outside.snapshot(),
        )  # fmt: skip

    def _live(self) -> list[Machine]:
        return self._site.serving_machines()

    def _enrolling_peers(self, admitted: Admission) -> list[TunnelPeer]:
        """The peers that may only hand in their keys, with their enrolment keys."""
        if self.desk is None:
            return []
        once = self._may_hand_in(admitted)
        keys = [self.desk.public_key(e.generation, e.node) for e in once]
        return [
            TunnelPeer(address=e.address, key=key, live=False)
            for e, key in zip(once, keys, strict=True)
        ]

    def _may_hand_in(self, admitted: Admission) -> list[Enrolling]:
        """The machines that may hand in their keys now, at most one for each address."""
        now, cloud_of, config = self._site.now(), self._cloud_of, self._site.config
        boot_s = {cloud: config.resume_timeout(config.cloud(cloud)) for cloud in self._once}
        return [
            e for e in newest(admitted.enrolling, (p.address for p in admitted.peers))
            if (cloud := cloud_of(e.node)) in boot_s and may_enrol_once(e, now, boot_s[cloud])
        ]  # fmt: skip

    def _cloud_of(self, node: str) -> str:
        pool = self._site.pool_of.get(node)
        return pool.cloud if pool is not None else ""

    def _staying_peers(
        self, unread_clouds: Set[str], admitted_peers: Sequence[TunnelPeer], over: Sequence[Tunnel]
    ) -> list[TunnelPeer]:
        """The hub's present peers that must stay although the ledger does not know them, because it
        is new and some clouds (``unread_clouds``) are not read yet. Peers with a tunnel stay until
        all clouds with tunnels are read, the others until all other clouds are. Peers whose end the
        ledger knows do not stay. ``over``: the tunnels of ended machines.
        """
        hub_state = self._hub(Show())
        staying: list[TunnelPeer] = []
        if unread_clouds & self._clouds:
            tunnels = by_address(hub_state.peers).items()
            staying += (
                TunnelPeer(address=address, key=peer.key, live=peer.live)
                for address, peer in tunnels
            )
        if unread_clouds - self._clouds:
            staying += (TunnelPeer(address=address) for address in hub_state.plain)
        addresses = {p.address for p in admitted_peers} | self._ending_addresses()
        keys = {p.key for p in admitted_peers if p.key} | {row.key for row in over}
        return [p for p in staying if p.address not in addresses and p.key not in keys]

    def _ending_addresses(self) -> set[str]:
        """The addresses of machines ending or ended lately."""
        lately = self._site.now() - ENDED_LATELY_S
        recent_machines = self._site.ledger.machines.live(ended_since=lately)
        ending = [m for m in recent_machines if not m.is_wanted]
        public_addresses = self._outside.snapshot()
        addresses = {m.instance.address or "" for m in ending}
        addresses |= {public_addresses.get(m.instance.id, "") for m in ending}
        return addresses - {""}

    def _recover(self) -> None:
        """After the loss of a ledger, take the keys of live machines from the hub's peers. A key
        already in the ledger belongs to another machine.
        """
        ledger, now = self._site.ledger, self._site.now()
        known_keys = {t.key for t in ledger.tunnels.all()}
        lost = {(e.generation, e.node): e for e in self._admission().enrolling}
        live = {(m.instance.generation, m.instance.node) for m in self._live()}
        lost = {key: enrolling for key, enrolling in lost.items() if key in live}
        if not lost:
            return
        hub_peers = by_address(self._hub(Show()).peers)
        for enrolling in lost.values():
            peer = hub_peers.get(enrolling.address)
            if (
                peer is None
                or not peer.live
                or peer.key in known_keys
                # A handshake of the future is from before the clock was set back.
                or not -1.0 <= now - peer.handshake <= HANDSHAKE_MAX_AGE_S
            ):
                continue
            self._accept_key(enrolling, peer.key, KeyOfHub(address=enrolling.address))

    def _restore_restarted(self) -> None:
        """Accept the earlier key of a restarted machine, which has it on its disk."""
        key_by_machine = {
            (m.instance.generation, m.instance.node): m.tunnel_key
            for m in self._live()
            if m.tunnel_key
        }
        for enrolling in self._admission().enrolling if key_by_machine else ():
            if key := key_by_machine.get((enrolling.generation, enrolling.node)):
                self._accept_key(enrolling, key, KeyBeforeStop(address=enrolling.address))

    def _start_reading(self, instance: Instance) -> None:
        clock, running = self._site.monotonic(), self._reading.get(instance.id)
        if running is not None and not running.done():
            return
        if clock < self._retry_at.get(instance.id, -inf):
            return
        self._retry_at[instance.id] = clock + self._pause
        self._reading[instance.id] = submit(
            self._readers, f"console of {instance.id}", self._read_console, instance
        )

    def _forget(self, living: Sequence[Instance]) -> None:
        """Forget past machines."""
        self._outside.keep({m.instance.id for m in self._site.ledger.machines.live()})
        names, nodes = {instance.id for instance in living}, {instance.node for instance in living}
        self._retry_at = {
            name: retry_at for name, retry_at in self._retry_at.items() if name in names
        }
        self._reading = {
            name: read for name, read in self._reading.items() if name in names or not read.done()
        }
        self._key_reports.forget_unless(lambda report: report[0] in nodes)

    def _read_console(self, instance: Instance) -> None:
        provider = self._site.providers[instance.cloud]
        if not isinstance(provider, Console):
            self._report_refusal(
                instance.node, f"cloud {instance.cloud} does not show what its machines print"
            )
            return
        try:
            key = printed_key(provider.console(instance.id), instance)
        except ProviderError as error:
            self._report_refusal(instance.node, f"{instance.id}: {error}")
            return
        except Exception:
            log.exception("console not read id=%s", instance.id)
            return
        address = self._addresses.get(instance.node)
        if key and address is not None:
            enrolling = Enrolling(
                generation=instance.generation, node=instance.node, address=address
            )
            source = KeyOnConsole(address=address, machine=instance.id)
            if self._accept_key(enrolling, key, source):
                self.apply()

    def handed_in(self, address: str, key: str) -> str:
        """Take the public key that a machine handed in from its address in the tunnel. Return "" or
        why the key is refused.
        """
        # The machine whose enrolment key the hub has at this address: of two launches of a node
        # only the later one can have sent the key.
        for enrolling in self._may_hand_in(self._admission()):
            if enrolling.address == address:
                if not self._accept_key(enrolling, key, KeyHandedIn(address=address)):
                    return "refused"
                return "" if self.apply() else "not now"
        log.warning("refused a key from an address that may not enrol address=%s", address)
        return "refused"

    def _accept_key(self, enrolling: Enrolling, key: str, source: TunnelKeySource) -> bool:
        tunnel = Tunnel(
            generation=enrolling.generation, node=enrolling.node, address=enrolling.address,
            key=key, since=self._site.now(),
        )  # fmt: skip
        head_key = Path(self._network.public_key)
        enrolment_keys = self._enrolment_keys(tunnel.generation)
        flaw = flaw_of(key, head_key, enrolment_keys) or self._site.ledger.tunnels.enrol(tunnel)
        if flaw:
            self._report_refusal(enrolling.node, KeyDoubted(flaw=flaw))
            return False
        log.info("enrolled node=%s address=%s key=%s", enrolling.node, enrolling.address, key)
        self._site.record(CORRELATION, "enrolled", (enrolling.node,), source)
        return True

    def _enrolment_keys(self, launch: str) -> Set[str]:
        """The enrolment keys of the machines that may come, and of all machines of this launch.

        A machine that knows its launch's word knows the keys of the whole launch. If it took such a
        key as its own, the other machine could not enter, and it would stay after its own end.
        """
        if self.desk is None:
            return frozenset()
        names = {(e.generation, e.node) for e in self._may_hand_in(self._admission())}
        names |= {
            (t.generation, t.node)
            for t in self._site.ledger.tunnels.all()
            if t.generation == launch
        }
        return {self.desk.public_key(*name) for name in names}

    def _report_refusal(self, node: str, reason: str | KeyDoubted) -> None:
        """Log each reason once per node, and record a doubted key. The other reasons only mean that
        a machine still boots.
        """
        if not self._key_reports.is_news((node, reason)):
            return
        level = logging.ERROR if isinstance(reason, KeyDoubted) else logging.INFO
        log.log(level, "not enrolled node=%s reason=%s", node, reason)
        if isinstance(reason, KeyDoubted):
            self._site.record(CORRELATION, "not-enrolled", (node,), reason)

    def _report_trouble(self, step: Callable[[], None]) -> bool:
        """Run a step and return whether it succeeded. Report an error of the hub, and its end, in
        the log and in ``status``.
        """
        trouble = ""
        try:
            step()
        except HubError as error:
            trouble = str(error)
        with self._lock:
            if trouble and self._hub_reports.is_news(HEALTH, trouble):
                log.error("%s", trouble)
                self._report(trouble)
            elif not trouble and self._hub_reports.clear(HEALTH):
                self._report("")
        return not trouble

    def _report(self, trouble: str) -> None:
        code = "network" if trouble else None
        health = Health(name=HEALTH, checked=self._site.now(), error=trouble or None, code=code)
        self._site.ledger.health.report(health)
