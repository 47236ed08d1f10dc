"""Evidence why the machine of a trial does not register: console, slurmctld's log, ports."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.units import brief
from slurm_elastic.config import Config
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.protocols import Console
from slurm_elastic.model.slurm import SlurmNode, leads_nowhere
from slurm_elastic.policies.launch.trial import (
    HEADLESS,
    NAMELESS,
    TrialLook,
    TrialStep,
    log_evidence,
    reason_set,
)
from slurm_elastic.providers import open_provider
from slurm_elastic.slurm.client.site import read_site

PROBE_TIMEOUT_S = 3.0  # for a TCP connection
CONSOLE_LINES = 12
SLURMCTLD_PORT = 6817
HEAD_VARIABLE = "SLURM_ELASTIC_HEAD"
_MAX_LOG_BYTES = 1 << 20


class Evidence:
    """The evidence of one trial. Of slurmctld's log, only the lines since the trial's
    start count.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._probed = ""
        self._log, self._port = _told_by_slurm(config)
        self._from = 0
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._from = self._log.stat().st_size

    def answers(self, machine: Machine, node: SlurmNode | None) -> bool:
        """Whether slurmd's port (with join.ssh: SSH's) accepts a connection.

        It connects to the address that slurmctld uses for the node.
        """
        ssh, address, port = self._config.join.ssh, machine.instance.address or "", 6818
        if ssh:
            port = ssh.port
        elif node is not None:
            port = node.port or port
            is_usable = node.address not in ("", node.name) and not leads_nowhere(node.address)
            address = node.address if is_usable else address
        self._probed = _probe(address, port)
        return not self._probed

    def why(
        self, steps_done: tuple[TrialStep, ...], look: TrialLook, node: str, cloud: str
    ) -> Iterator[str]:
        """Yield the possible causes, the most likely first; some are empty strings."""
        if TrialStep.LAUNCHED not in steps_done:
            yield look.refused
        yield from self.logged(node)
        console = self.console(look.machine)
        headless = any(re.search(rf"{HEADLESS}|{NAMELESS}", line) for line in console)
        head = self._head_of(cloud)
        astray, reached = self._answer_of(head)
        if headless:
            yield astray
        for line in reversed(console):
            yield f"{line} (its head is {head})" if re.search(NAMELESS, line) else line
        if TrialStep.REACHED not in steps_done:
            yield self._probed
        if headless:
            yield reached
        if TrialStep.REGISTERED not in steps_done:
            yield astray
        yield look.refused
        if look.node is not None:
            yield look.node.reason

    def logged(self, node: str) -> tuple[str, ...]:
        """The lines of slurmctld's log since the start that show why the node does not register."""
        return log_evidence(self._lines(), node)

    def reason(self, node: str) -> str:
        """The last reason that slurmctld set on the node since the start; "" if none."""
        return reason_set(self._lines(), node)

    def _lines(self) -> list[str]:
        if self._log is None:
            return []
        with contextlib.suppress(OSError), open(self._log, errors="replace") as file:
            file.seek(self._from)
            return file.read(_MAX_LOG_BYTES).splitlines()
        return []

    def console(self, machine: Machine | None) -> list[str]:
        """The last lines of the machine's console; empty if its cloud does not show it."""
        if machine is None:
            return []
        cloud = self._config.cloud(machine.instance.cloud)
        try:
            provider = open_provider(cloud, self._config.cluster, self._config)
            text = provider.console(machine.instance.id) if isinstance(provider, Console) else ""
        except Exception as error:  # noqa: BLE001 - an SDK may raise anything; other evidence counts
            return [f"the console cannot be read: {type(error).__name__}"]
        return [line for line in text.splitlines() if line.strip()][-CONSOLE_LINES:]

    def _head_of(self, cloud: str) -> str:
        """The head's address for machines: of ``environment``, else ``join.head``; "" if none."""
        environment: Mapping[str, str] = getattr(self._config.cloud(cloud), "environment", {})
        return environment.get(HEAD_VARIABLE) or self._config.join.head or ""

    def _answer_of(self, head: str) -> tuple[str, str]:
        """Ask the heads of ``join.head`` from this host. Returns two sentences.

        The first says that no head answers, the second that a head answers here and only the
        machine does not reach it. At most one has text; without ``head`` both are "".
        """
        if not head:
            return "", ""
        failed = [_probe(*_place(place, self._port)) for place in head.split(",")]
        if all(failed):
            failures = " and ".join(failed)
            # policies.launch.trial finds the remedy by this text: keep it.
            return f"no answer at join.head: {failures}; SlurmctldPort is {self._port}", ""
        return "", f"the machine does not reach join.head {head}, which answers here"


def _place(head: str, slurmctld_port: str) -> tuple[str, int]:
    """The host and port of an entry of ``join.head``. Machines add slurmctld's port, too."""
    name, _, number = head.partition(":")
    return name, int(number or slurmctld_port.partition("-")[0])


def _probe(address: str, port: int) -> str:
    """Why a TCP connection to this port fails; "" if it succeeds."""
    place = f"{address}:{port}"
    try:
        with socket.create_connection((address, port), PROBE_TIMEOUT_S):
            return ""
    except TimeoutError:
        return f"{place} did not answer in {brief(PROBE_TIMEOUT_S)} (no route to it)"
    except ConnectionRefusedError:
        return f"{place} refuses the connection"
    except OSError as error:
        return f"{place}: {error.strerror or error}"


def _told_by_slurm(config: Config) -> tuple[Path | None, str]:
    """The file that slurmctld logs to (None: no file), and its port."""
    with contextlib.suppress(ConfigError, OSError):
        site = read_site(config.slurm)
        log, port = site.option("SlurmctldLogFile"), site.option("SlurmctldPort")
        return Path(log.value) if log else None, port.value if port else str(SLURMCTLD_PORT)
    return None, str(SLURMCTLD_PORT)
