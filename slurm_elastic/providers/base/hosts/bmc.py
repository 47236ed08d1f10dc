"""Switches the power of hosts through their BMCs, by sushy (DMTF DSP0266)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from sushy import connector, exceptions
from sushy.resources.system.system import System

from slurm_elastic.base import trust
from slurm_elastic.base.errors import ConfigError, InstanceNotFound, ProviderError, TransientError
from slurm_elastic.base.processes import asking
from slurm_elastic.providers.base.errors import causes
from slurm_elastic.providers.base.hosts.bmc_settings import BmcSettings
from slurm_elastic.providers.base.statuses import error_of_status

RESETS = {"on": "On", "shutdown": "GracefulShutdown", "off": "ForceOff"}


def redfish_of(settings: BmcSettings) -> Redfish:
    """The switches of a cloud. ConfigError, without any of its content, if the file of credentials
    cannot be used.
    """
    where = f"cloud {settings.name!r}: credentials: {settings.credentials_file}"
    try:
        path = Path(settings.credentials_file or "")
        flaw = trust.flaw(path, trust.ours(), private=True)
        login = json.loads(path.read_text(encoding="utf-8"))
        credentials = str(login["username"]), str(login["password"])
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError):
        raise ConfigError(f"{where}: found no JSON object with username and password") from None
    if flaw:
        raise ConfigError(f"cloud {settings.name!r}: credentials: {flaw}")
    return Redfish(settings, *credentials)


class Redfish:
    """Switches hosts. It logs in again with each call."""

    def __init__(self, settings: BmcSettings, username: str, password: str) -> None:
        self._settings = settings
        self._login = (username, password)

    def is_on(self, host: str) -> bool:
        """Whether the host is on. See ``base.switched.Power``."""
        with self._system(host) as system:
            if system.power_state is None:
                raise ValueError("no PowerState")
            return str(system.power_state.value) != "Off"

    def switch(self, host: str, order: str) -> None:
        """See base.switched.Power. If a BMC cannot shut a host down, the host is switched off."""
        with self._system(host) as system:
            allowed_resets = {
                reset.value: reset for reset in system.get_allowed_reset_system_values()
            }
            # "on" is never replaced: a BMC that lacks it raises an error, instead of switching the
            # host off.
            order = order if RESETS[order] in allowed_resets or order == "on" else "off"
            system.reset_system(allowed_resets[RESETS[order]])

    def shut_down(self, host: str) -> None:
        """Ask the operating system to shut down. ProviderError if the BMC cannot do that; the power
        stays on.
        """
        with self._system(host) as system:
            allowed = {reset.value: reset for reset in system.get_allowed_reset_system_values()}
            graceful = allowed.get(RESETS["shutdown"])
            if graceful is not None:
                system.reset_system(graceful)
        if graceful is None:
            text = f"{host}: its BMC knows no GracefulShutdown"
            raise ProviderError(self._settings.name, "NoShutdown", text)

    @contextmanager
    def _system(self, host: str) -> Iterator[System]:
        """The host's system. TransientError if there is no answer or a senseless one, because the
        call may have taken effect.
        """
        asking.check_gate()
        name, url = self._settings.name, urlsplit(self._settings.hosts[host])
        link = connector.Connector(
            f"{url.scheme}://{url.netloc}", verify=self._settings.ca_file or True,
            server_side_retries=1, default_request_timeout=self._settings.api_timeout,
        )  # fmt: skip
        # No session: a BMC has only a few of them, and a crash would leave one behind.
        link.set_http_basic_auth(*self._login)
        try:
            yield System(link, url.path)
        except exceptions.ConnectionError as error:  # its text repeats that of each library below
            reasons = (c.strerror for c in causes(error) if isinstance(c, OSError) and c.strerror)
            text = f"{host}: {url.netloc} cannot be reached: {next(reasons, error)}"
            raise TransientError(name, "NotConnected", text) from error
        except exceptions.HTTPError as error:
            refusal = error_of_status(name, error.status_code, f"{host}: {error}")
            if isinstance(refusal, InstanceNotFound):
                # The path may be mistyped, or a new firmware's. The host may run all the same.
                refusal = ProviderError(name, refusal.code, refusal.message)
            raise refusal from error
        except (exceptions.SushyError, LookupError, ValueError, AttributeError) as error:
            raise TransientError(name, type(error).__name__, f"{host}: {error}") from error
        finally:
            link.close()
