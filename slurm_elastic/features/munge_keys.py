"""Brings the secret of the machines (``join_secret``) to fresh ones by SSH (``join.ssh``).

Each machine is tried again, a few at a time, from its launch until its node is up or its time to
boot is over. No row says which machine has it: after a restart of the daemon the key goes once
more to the machines that boot just then, which changes nothing on them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ClassVar

from slurm_elastic.base.background import submit
from slurm_elastic.base.errors import ConfigError, ProviderError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.config import Config
from slurm_elastic.config.joining import CONSOLE, Ssh
from slurm_elastic.controller.boots import KEY_FAILED, KEY_REFUSED
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Part
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.host_keys import HostKey, KnownHosts, host_key, printed_keys
from slurm_elastic.features.join_secret import owner_of, text_for
from slurm_elastic.features.ssh_file import (
    PushError,
    Target,
    WrongHostKeyError,
    push,
    read_private_key,
)
from slurm_elastic.model.causes.pool_failures import KeyNotBrought
from slurm_elastic.model.memory import generation_time
from slurm_elastic.model.protocols import Console
from slurm_elastic.policies.launch.boots import given_up_after
from slurm_elastic.providers.base.joining import KEY_MARK
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)


PERIOD = 2.0
"""Seconds between two looks at the ledger."""
PAUSE = 5.0
"""Seconds between two tries at one machine."""
CORRELATION = "join"


class MungeKeys(Part):
    """``looks`` is the daemon's task, in the thread of ``own``, and starts what is due; the work is
    in threads of its own. ``_failures``: why the last try at a machine failed, by its id.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_known")}

    def __init__(
        self, site: Site, ssh: Ssh, *, mark: str = KEY_MARK,
        worker: Executor | None = None, pause: float = PAUSE, own: Executor | None = None,
    ) -> None:  # fmt: skip
        self._site = site
        self._ssh, self._what = ssh, ssh.secret_name
        self._mark, self._pause = mark, pause
        self._ours = read_private_key(ssh.key)
        text_for(ssh, "", site.now())  # told at the start where it cannot be used
        self._fixed = () if ssh.host_key == CONSOLE else (host_key(ssh.host_key),)
        self._known = KnownHosts((site.config.state / "known_hosts").resolve())
        self._lock = threading.Lock()
        self._worker = worker or ThreadPoolExecutor(ssh.at_once, thread_name_prefix="munge-key")
        self.looks = SiteTask(site, own or self._worker, self.tick, "munge keys", period=PERIOD)
        self._running: dict[str, Future[bool]] = {}
        self._again: dict[str, float] = {}
        self._done: set[str] = set()
        self._failures = ReportOnce[str]()
        self._next = float("-inf")

    def tick(self) -> None:
        """Collect what has ended, forget machines that are gone, start what is due."""
        clock = self._site.monotonic()
        if clock < self._next:
            return
        self._next = clock + PERIOD
        self._collect(clock)
        state = self._site.ledger.state()
        machines = state.machines
        alive = {m.instance.id for m in machines}
        with self._lock:  # one that is stopped comes back with the keys that it had
            self._known.keep(alive | {m.instance.id for m in state.stopped})
        self._done &= alive
        self._failures.forget_unless(alive.__contains__)
        self._again = {i: at for i, at in self._again.items() if i in alive}
        for machine in machines:
            if machine.registered_at is not None:
                self._note_joined(machine)
            elif self._is_due(machine, clock):
                self._running[machine.instance.id] = submit(
                    self._worker, f"{self._what} to {machine.instance.id}", self._bring, machine
                )

    def close(self) -> None:
        """Wait for the tries that run."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _is_due(self, machine: Machine, clock: float) -> bool:
        one = machine.instance
        if (
            one.id in self._done
            or one.id in self._running
            or clock < self._again.get(one.id, clock)
        ):
            return False
        if not one.address or not machine.is_wanted:
            return False
        if not takes_key(self._site.config, one.cloud):
            return False
        born = generation_time(one.generation) or one.launched
        timeout = self._site.config.resume_timeout(self._site.clouds[one.cloud])
        if self._site.now() - born <= given_up_after(timeout) - PERIOD:  # it is gone after that
            return True
        self._done.add(one.id)
        last_failure = self._failures.last(one.id) or "it was never tried"
        log.error(
            "%s not brought, too late id=%s node=%s reason=%s",
            self._what,
            one.id,
            one.node,
            last_failure,
        )
        cause = KeyNotBrought(machine=one.id, error=str(last_failure))
        self._site.record(CORRELATION, KEY_FAILED, (one.node,), cause)
        return False

    def _note_joined(self, machine: Machine) -> None:
        """The key has come with a try whose answer did not: a slow machine goes on without us."""
        one, last_failure = machine.instance, self._failures.last(machine.instance.id)
        if last_failure is None or one.id in self._done or one.id in self._running:
            return
        self._done.add(one.id)
        log.info(
            "%s: the node has registered id=%s node=%s last=%s",
            self._what, one.id, one.node, last_failure,
        )  # fmt: skip
        why = f"{one.id}: its node has registered; the last try told: {last_failure}"
        self._site.record(CORRELATION, "key-brought", (one.node,), why)

    def _collect(self, clock: float) -> None:
        for name, future in list(self._running.items()):
            if not future.done():
                continue
            del self._running[name]
            if future.exception() is None and future.result():
                self._done.add(name)
            else:
                self._again[name] = clock + self._pause

    def _bring(self, machine: Machine) -> bool:
        """One try at one machine; whether it has the key now."""
        one = machine.instance
        target = Target(
            address=one.address or "",
            port=self._ssh.port,
            user=self._ssh.user,
            path=self._ssh.place,
            owner=owner_of(self._ssh),
            mark=self._mark,
            timeout=self._ssh.timeout,
        )
        try:
            text = text_for(self._ssh, one.cloud, self._site.now())
            push(target, self._ours, self._keys_of(machine), text)
        except WrongHostKeyError as error:
            self._complain(machine, f"wrong host key, nothing was sent: {error}", loud=True)
            return False
        except (PushError, ProviderError, ConfigError) as error:
            self._complain(machine, str(error), loud=False)
            return False
        log.info("%s brought id=%s node=%s address=%s", self._what, one.id, one.node, one.address)
        self._site.record(CORRELATION, "key-brought", (one.node,), f"{one.id} at {one.address}")
        return True

    def _keys_of(self, machine: Machine) -> Sequence[HostKey]:
        """The host keys the machine must show; asked of its cloud once."""
        one, port = machine.instance, self._ssh.port
        address = one.address or ""
        with self._lock:
            known = self._known.keys(one.id, address, port)
        if known:
            return known
        keys = self._fixed or self._printed(machine)
        if keys:
            with self._lock:
                self._known.put(one.id, address, port, keys)
        return keys

    def _printed(self, machine: Machine) -> tuple[HostKey, ...]:
        provider = self._site.providers[machine.instance.cloud]
        if not isinstance(provider, Console):
            raise PushError(f"cloud {provider.name} does not show what its machines print")
        return printed_keys(provider.console(machine.instance.id))

    def _complain(self, machine: Machine, why: str, *, loud: bool) -> None:
        """Each complaint about a machine once: most only mean that it boots."""
        one = machine.instance
        if not self._failures.is_news(one.id, why):
            return
        level = logging.ERROR if loud else logging.INFO
        log.log(
            level, "%s not brought yet id=%s node=%s reason=%s", self._what, one.id, one.node, why
        )
        if loud:
            self._site.record(
                CORRELATION, KEY_REFUSED, (one.node,), KeyNotBrought(machine=one.id, error=why)
            )


def takes_key(config: Config, cloud: str) -> bool:
    """Whether machines of that cloud get the key by SSH: those that are told by user data."""
    try:
        return config.cloud(cloud).by_user_data
    except KeyError:  # the ledger has machines of clouds that left the configuration
        return False
