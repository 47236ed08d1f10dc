"""Switches the power of hosts by the site's own command: IPMI, wake-on-LAN, a switched outlet."""

from __future__ import annotations

import os
import signal
import subprocess

from slurm_elastic.base.errors import ProviderError, TransientError
from slurm_elastic.base.one_line import one_line
from slurm_elastic.base.processes import asking
from slurm_elastic.providers.base.hosts.bmc_settings import BmcSettings


class PowerCommand:
    """Runs ``COMMAND on|shutdown|off|state HOST``. It must exit with 0, and ``state`` must print
    ``on`` or ``off``.
    """

    def __init__(self, settings: BmcSettings) -> None:
        self._settings = settings

    def is_on(self, host: str) -> bool:
        """Whether the host is on. See ``base.switched.Power``."""
        output = self._run(host, "state")
        if output not in ("on", "off"):
            text = f"{host}: state printed {output[:80]!r}, expected on or off"
            raise TransientError(self._settings.name, "BadState", text)
        return output == "on"

    def switch(self, host: str, order: str) -> None:
        """Give the host an order. See ``base.switched.Power``."""
        self._run(host, order)

    def shut_down(self, host: str) -> None:
        """Have the command shut the host down."""
        self._run(host, "shutdown")

    def _run(self, host: str, order: str) -> str:
        name, command = self._settings.name, self._settings.command
        # A call for many hosts gives one order after the other for minutes. This head may no longer
        # act by then.
        asking.check_gate()
        try:
            process = subprocess.Popen(
                [*command, order, self._settings.hosts[host]], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                errors="backslashreplace", start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise ProviderError(name, "NoCommand", f"{command[0]}: {error}") from error
        with process:
            try:
                output, error_output = process.communicate(timeout=self._settings.api_timeout)
            except subprocess.TimeoutExpired as error:
                # Kill its whole process group, or a child may carry out the order much later.
                os.killpg(process.pid, signal.SIGKILL)
                text = f"{host}: {command[0]} {order} did not end in {error.timeout:g} s"
                raise TransientError(name, "TimedOut", text) from error
        if process.returncode:
            text = f"{host}: {command[0]} {order}: {one_line(error_output, 200)}"
            raise TransientError(name, f"Exit{process.returncode}", text)
        return output.strip()
