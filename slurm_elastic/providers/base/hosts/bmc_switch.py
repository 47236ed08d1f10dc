"""Gives a provider of hosted machines the power switches of its hosts, as ``hypervisors`` says."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from msgspec import Struct

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.config import Config
from slurm_elastic.model.hypervisor import SwitchRules
from slurm_elastic.providers.base.hosts.claims import claims_of
from slurm_elastic.providers.base.hosts.host_switch import HostPower, HostSwitch
from slurm_elastic.providers.base.hosts.hosted import HostedProvider
from slurm_elastic.providers.base.hosts.hosted_cloud import HostedCloud, Hypervisors


class _Bmcs(Struct, frozen=True, kw_only=True):
    """The settings of the switches (``bmc_settings.BmcSettings``)."""

    name: str
    hosts: Mapping[str, str]
    credentials_file: str | None
    ca_file: str | None
    command: tuple[str, ...]
    api_timeout: float


def attach(provider: HostedProvider[Any], settings: HostedCloud, config: Config | None) -> None:
    """Let the provider switch its hosts. ConfigError if the BMCs' account cannot be read."""
    hypervisors: Hypervisors | None = getattr(settings, "hypervisors", None)
    if hypervisors is None:
        if config is not None:
            _leave_out(provider, settings, config)
        return
    bmcs = _Bmcs(
        name=settings.name,
        hosts=hypervisors.bmcs,
        credentials_file=hypervisors.credentials_file,
        ca_file=hypervisors.ca_file,
        command=hypervisors.command,
        api_timeout=settings.api_timeout,
    )
    claims = claims_of(settings, hypervisors.claims_file, config)
    rules = SwitchRules(idle_s=hypervisors.idle, keep=hypervisors.keep)
    names, boot_timeout_s = tuple(hypervisors.bmcs), hypervisors.boot_timeout
    provider.switch_hosts_by(HostSwitch(names, _power(bmcs), claims, rules, boot_timeout_s))


def _leave_out(provider: HostedProvider[Any], settings: HostedCloud, config: Config) -> None:
    """Leave out the hosts that were off when somebody took the section ``hypervisors`` away. Else
    they would make every listing of the cloud fail.
    """
    claims = claims_of(settings, None, config)
    rules = SwitchRules(idle_s=inf, keep=0)
    provider.switch_hosts_by(HostSwitch((), _NoPower(), claims, rules, boot_timeout_s=0.0))


class _NoPower:
    """Stands for the power of hosts without a BMC: it switches no host."""

    def is_on(self, host: str) -> bool:
        raise ProviderError("", "NoPower", f"{host} cannot be switched")

    def switch(self, host: str, order: str) -> None:
        raise ProviderError("", "NoPower", f"{host} cannot be switched {order}")

    def shut_down(self, host: str) -> None:
        raise ProviderError("", "NoPower", f"{host} cannot be switched")


def _power(bmcs: _Bmcs) -> HostPower:
    if bmcs.command:
        from slurm_elastic.providers.base.hosts.power_command import PowerCommand

        return PowerCommand(bmcs)
    from slurm_elastic.providers.base.hosts.bmc import redfish_of

    return redfish_of(bmcs)
