"""The power of hosts by the site's command: IPMI, wake-on-LAN, a switched outlet."""

from __future__ import annotations

import os
import signal
import subprocess

from slurm_elastic.base.errors import ProviderError, TransientError
from slurm_elastic.providers.redfish.settings import RedfishCloud


class Command:
    """``COMMAND on|shutdown|off|state HOST``: exit 0, and ``state`` prints ``on`` or ``off``."""

    def __init__(self, settings: RedfishCloud) -> None:
        self._settings = settings

    def is_on(self, host: str) -> bool:
        """As base.switched.Power."""
        said = self._run(host, "state")
        if said not in ("on", "off"):
            text = f"{host}: state printed {said[:80]!r}, expected on or off"
            raise TransientError(self._settings.name, "BadState", text)
        return said == "on"

    def switch(self, host: str, word: str) -> None:
        """As base.switched.Power."""
        self._run(host, word)

    def _run(self, host: str, word: str) -> str:
        name, command = self._settings.name, self._settings.command
        try:
            process = subprocess.Popen(
                [*command, word, self._settings.hosts[host]], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                errors="backslashreplace", start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise ProviderError(name, "NoCommand", f"{command[0]}: {error}") from error
        with process:
            try:
                said, complaint = process.communicate(timeout=self._settings.timeout)
            except subprocess.TimeoutExpired as error:
                # With all that it started, or an order may yet be carried out much later.
                os.killpg(process.pid, signal.SIGKILL)
                text = f"{host}: {command[0]} {word} did not end in {error.timeout:g} s"
                raise TransientError(name, "TimedOut", text) from error
        if process.returncode:
            text = f"{host}: {command[0]} {word}: {complaint.strip()[:200]}"
            raise TransientError(name, f"Exit{process.returncode}", text)
        return said.strip()
