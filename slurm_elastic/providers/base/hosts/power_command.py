"""Switches the power of hosts by the site's own command: IPMI, wake-on-LAN, a switched outlet."""

from __future__ import annotations

import subprocess

from slurm_elastic.base.errors import ProviderError, TransientError
from slurm_elastic.base.one_line import one_line
from slurm_elastic.base.processes import asking
from slurm_elastic.base.processes.whole_group import run_whole
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
            done = run_whole(
                [*command, order, self._settings.hosts[host]], self._settings.api_timeout
            )
        except subprocess.TimeoutExpired as error:
            text = f"{host}: {command[0]} {order} did not end in {error.timeout:g} s"
            raise TransientError(name, "TimedOut", text) from error
        except (OSError, ValueError) as error:
            raise ProviderError(name, "NoCommand", f"{command[0]}: {error}") from error
        if done.returncode:
            text = f"{host}: {command[0]} {order}: {one_line(done.stderr, 200)}"
            raise TransientError(name, f"Exit{done.returncode}", text)
        return done.stdout.strip()
