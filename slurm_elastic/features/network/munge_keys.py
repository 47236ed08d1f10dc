"""Copies the machines' secret (``join_secret``) to new machines by SSH (``join.ssh``).

Each machine is retried from its launch until its node is up or its boot time-out is over, a few
machines at a time. The ledger does not record which machines have the secret. After a restart the
daemon copies it once more to all booting machines, which changes nothing on them.

``key rotate`` may change the secret while a machine boots. So the daemon remembers the digest of
what it brought, and brings the secret again to a booting machine if the digest is another now.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ClassVar

from slurm_elastic.base.errors import ConfigError, ProviderError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.processes.background import submit
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.config import Config
from slurm_elastic.config.sections.joining import CONSOLE, Ssh
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Part
from slurm_elastic.controller.launching.boots import KEY_FAILED, KEY_REFUSED
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.features.network.host_keys import HostKey, KnownHosts, host_key, printed_keys
from slurm_elastic.features.network.join_secret import owner_of, restart_of, text_for
from slurm_elastic.features.network.ssh_file import (
    FileTarget,
    PushError,
    WrongHostKeyError,
    push,
    read_private_key,
)
from slurm_elastic.model.causes.joining import RegisteredWithSecret, SecretBrought
from slurm_elastic.model.causes.pool_failures import KeyNotBrought
from slurm_elastic.model.memory import generation_time
from slurm_elastic.model.protocols import Console
from slurm_elastic.policies.launch.boots import given_up_after
from slurm_elastic.providers.base.joining import KEY_MARK
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)


PERIOD_S = 2.0
"""Seconds between two looks at the ledger."""
RETRY_S = 5.0
"""Seconds between two tries at one machine."""
CORRELATION = "join"
GIVEN_UP = ""


class MungeKeys(Part):
    """``task``: the periodic task that the daemon runs, in the thread of ``task_executor``. It
    starts due tries in the threads of ``worker``. ``_failures``: by machine id, why the last try
    failed. ``_finished``: by id of a machine that needs no more tries, the digest of the secret
    that was brought, or GIVEN_UP.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_known")}

    def __init__(
        self, site: Site, ssh: Ssh, *, mark: str = KEY_MARK,
        worker: Executor | None = None, pause: float = RETRY_S,
        task_executor: Executor | None = None,
    ) -> None:  # fmt: skip
        self._site = site
        self._ssh, self._secret_name = ssh, ssh.secret_name
        self._mark, self._pause = mark, pause
        self._private_key = read_private_key(ssh.key)
        text_for(ssh, "", site.now())  # a secret that cannot be used must fail the start
        self._fixed = () if ssh.host_key == CONSOLE else (host_key(ssh.host_key),)
        self._known = KnownHosts((site.config.state / "known_hosts").resolve())
        self._lock = threading.Lock()
        self._worker = worker or ThreadPoolExecutor(ssh.at_once, thread_name_prefix="munge-key")
        self.task = SiteTask(
            site, task_executor or self._worker, self.tick, "munge keys", period=PERIOD_S
        )
        self._running: dict[str, Future[str | None]] = {}
        self._retry_at: dict[str, float] = {}
        self._finished: dict[str, str] = {}
        self._failures = ReportOnce[str]()
        self._next_tick_at = float("-inf")

    def tick(self) -> None:
        """Collect the results of ended tries, forget past machines, start due tries."""
        clock = self._site.monotonic()
        if clock < self._next_tick_at:
            return
        self._next_tick_at = clock + PERIOD_S
        self._collect(clock)
        state = self._site.ledger.state()
        machines = state.machines
        alive = {m.instance.id for m in machines}
        with self._lock:  # a stopped machine has the same host keys when it starts again
            self._known.keep(alive | {m.instance.id for m in state.stopped})
        self._finished = {i: digest for i, digest in self._finished.items() if i in alive}
        self._failures.forget_unless(alive.__contains__)
        # Machines come and go for years. If past machines stayed, the dict would grow for ever.
        self._retry_at = {i: retry_at for i, retry_at in self._retry_at.items() if i in alive}
        for machine in machines:
            if machine.registered_at is not None:
                self._note_joined(machine)
            elif self._is_due(machine, clock):
                self._running[machine.instance.id] = submit(
                    self._worker,
                    f"{self._secret_name} to {machine.instance.id}",
                    self._bring_secret,
                    machine,
                )

    def close(self) -> None:
        """Wait for the running tries."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _is_due(self, machine: Machine, clock: float) -> bool:
        instance = machine.instance
        if (
            self._is_finished(machine)
            or instance.id in self._running
            or clock < self._retry_at.get(instance.id, clock)
        ):
            return False
        if not instance.address or not machine.is_wanted:
            return False
        if not takes_key(self._site.config, instance.cloud):
            return False
        # The time of our call, not the cloud's: ResumeTimeout runs from Slurm's request, and the
        # clouds' clocks differ.
        launched_at = generation_time(instance.generation) or instance.launched
        timeout = self._site.config.resume_timeout(self._site.clouds[instance.cloud])
        # The machine is given up after that time, so a later try would be too late.
        if self._site.now() - launched_at <= given_up_after(timeout) - PERIOD_S:
            return True
        self._finished[instance.id] = GIVEN_UP
        last_failure = self._failures.last_report(instance.id) or "it was never tried"
        log.error(
            "%s not brought, too late id=%s node=%s reason=%s",
            self._secret_name,
            instance.id,
            instance.node,
            last_failure,
        )
        cause = KeyNotBrought(machine=instance.id, error=str(last_failure))
        self._site.record(CORRELATION, KEY_FAILED, (instance.node,), cause)
        return False

    def _note_joined(self, machine: Machine) -> None:
        """Record that the node has registered although we saw no successful try: a try brought the
        secret, but its answer was lost.
        """
        instance, last_failure = machine.instance, self._failures.last_report(machine.instance.id)
        if last_failure is None or instance.id in self._finished or instance.id in self._running:
            return
        self._finished[instance.id] = GIVEN_UP
        log.info(
            "%s: the node has registered id=%s node=%s last=%s",
            self._secret_name, instance.id, instance.node, last_failure,
        )  # fmt: skip
        cause = RegisteredWithSecret(machine=instance.id, last_failure=str(last_failure))
        self._site.record(CORRELATION, "key-brought", (instance.node,), cause)

    def _collect(self, clock: float) -> None:
        for name, future in list(self._running.items()):
            if not future.done():
                continue
            del self._running[name]
            if future.exception() is None and (digest := future.result()):
                self._finished[name] = digest
            else:
                self._retry_at[name] = clock + self._pause

    def _is_finished(self, machine: Machine) -> bool:
        """Whether the machine needs no more tries: it was given up, or has the present secret."""
        brought = self._finished.get(machine.instance.id)
        if brought is None or brought == GIVEN_UP:
            return brought is not None
        try:
            text = text_for(self._ssh, machine.instance.cloud, self._site.now())
        except ConfigError:  # what the machine has is all that we know of
            return True
        return brought == _digest(text)

    def _bring_secret(self, machine: Machine) -> str | None:
        """Try once to copy the secret to a machine. Return the digest of the machine's present
        secret, None if it has none.
        """
        instance = machine.instance
        target = FileTarget(
            address=instance.address or "",
            port=self._ssh.port,
            user=self._ssh.user,
            path=self._ssh.place,
            owner=owner_of(self._ssh),
            mark=self._mark,
            timeout=self._ssh.timeout,
        )
        try:
            text = text_for(self._ssh, instance.cloud, self._site.now())
            push(target, self._private_key, self._keys_of(machine), text, restart_of(self._ssh))
        except WrongHostKeyError as error:
            self._complain(machine, f"wrong host key, nothing was sent: {error}", loud=True)
            return None
        except (PushError, ProviderError, ConfigError) as error:
            self._complain(machine, str(error), loud=False)
            return None
        log.info(
            "%s brought id=%s node=%s address=%s",
            self._secret_name,
            instance.id,
            instance.node,
            instance.address,
        )
        cause = SecretBrought(machine=instance.id, address=target.address)
        self._site.record(CORRELATION, "key-brought", (instance.node,), cause)
        return _digest(text)

    def _keys_of(self, machine: Machine) -> Sequence[HostKey]:
        """The host keys of which the machine must show one. They are read from the machine's
        console and then kept. PushError or ProviderError if the console cannot be read.
        """
        instance, port = machine.instance, self._ssh.port
        address = instance.address or ""
        with self._lock:
            known_keys = self._known.keys(instance.id, address, port)
        if known_keys:
            return known_keys
        # Outside of the lock: a console may take the cloud's whole time-out.
        keys = self._fixed or self._printed(machine)
        if keys:
            with self._lock:
                self._known.put(instance.id, address, port, keys)
        return keys

    def _printed(self, machine: Machine) -> tuple[HostKey, ...]:
        provider = self._site.providers[machine.instance.cloud]
        if not isinstance(provider, Console):
            raise PushError(f"cloud {provider.name} does not show what its machines print")
        return printed_keys(provider.console(machine.instance.id))

    def _complain(self, machine: Machine, reason: str, *, loud: bool) -> None:
        """Log each failure of a machine once. Most failures only mean that it still boots."""
        instance = machine.instance
        if not self._failures.is_news(instance.id, reason):
            return
        level = logging.ERROR if loud else logging.INFO
        log.log(
            level,
            "%s not brought yet id=%s node=%s reason=%s",
            self._secret_name,
            instance.id,
            instance.node,
            reason,
        )
        if loud:
            self._site.record(
                CORRELATION,
                KEY_REFUSED,
                (instance.node,),
                KeyNotBrought(machine=instance.id, error=reason),
            )


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def takes_key(config: Config, cloud: str) -> bool:
    """Whether machines of the cloud get the secret by SSH. They do if the cloud uses user data."""
    try:
        return config.cloud(cloud).by_user_data
    except KeyError:  # the ledger has machines of clouds that left the configuration
        return False
