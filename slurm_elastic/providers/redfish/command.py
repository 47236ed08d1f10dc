"""The power of hosts by the site's command: IPMI, wake-on-LAN, a switched outlet."""

from __future__ import annotations

import subprocess

from slurm_elastic.errors import ProviderError, TransientError
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
            done = subprocess.run(
                [*command, word, self._settings.hosts[host]], stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=self._settings.timeout, check=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            text = f"{host}: {command[0]} {word} did not end in {error.timeout:g} s"
            raise TransientError(name, "TimedOut", text) from error
        except subprocess.CalledProcessError as error:
            text = f"{host}: {command[0]} {word}: {str(error.stderr).strip()[:200]}"
            raise TransientError(name, f"Exit{error.returncode}", text) from error
        except (OSError, ValueError) as error:
            raise ProviderError(name, "NoCommand", f"{command[0]}: {error}") from error
        return done.stdout.strip()
