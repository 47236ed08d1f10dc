"""The private addresses of machines. Azure shows them at network cards only, not at machines."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.providers.azure.client import NETWORK, ArmApi
from slurm_elastic.providers.azure.settings import AzureCloud

log = logging.getLogger(__name__)

READ_EVERY_S = 10.0
RETRY_EVERY_S = 120.0
"""After a refusal. The watchdog's role may not read cards, and the watchdog needs no address."""


class Addresses:
    """The last known address of each machine, which stays the same as long as its card exists.
    Thread-safe.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_by_name", "_next_at")}

    def __init__(
        self, settings: AzureCloud, api: ArmApi, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._api = api
        self._clock = clock
        self._lock = threading.Lock()
        self._by_name: dict[str, str] = {}
        self._next_at = clock()

    def of(self, names: Sequence[str]) -> Mapping[str, str]:
        """The addresses of our machines as far as they are known. Cards are listed only if an
        address is missing. An error leaves addresses unknown: it must not hide the machines.
        """
        now = self._clock()
        listed = frozenset(names)
        with self._lock:
            self._by_name = {n: a for n, a in self._by_name.items() if n in listed}
            if len(self._by_name) >= len(names) or now < self._next_at:
                return dict(self._by_name)
            self._next_at = now + READ_EVERY_S
        try:
            addresses = self._read()
        except ProviderError as error:
            log.info("addresses not read cloud=%s error=%s", self._settings.name, error)
            with self._lock:
                self._next_at = now + RETRY_EVERY_S
                return dict(self._by_name)
        with self._lock:
            for name in names:
                if address := addresses.get(name.lower()):
                    self._by_name[name] = address
            return dict(self._by_name)

    def _read(self) -> dict[str, str]:
        """The addresses of the group's machines by name in lower case."""
        group = self._settings.group_path
        cards = f"{group}/providers/Microsoft.Network/networkInterfaces"
        machines = f"{group}/providers/Microsoft.Compute/virtualMachines/".lower()
        addresses: dict[str, str] = {}
        for card in self._api.listed(cards, NETWORK):
            properties = _inner(card, "properties")
            # Azure writes ids in any case.
            machine = str(_inner(properties, "virtualMachine").get("id", "")).lower()
            address = address_of(properties)
            if not address or not machine.startswith(machines):
                continue
            name = machine.removeprefix(machines)
            if properties.get("primary") is True:
                addresses[name] = address
            else:
                addresses.setdefault(name, address)
        return addresses


def address_of(properties: Mapping[str, Any]) -> str:
    """The private address of a card's primary configuration. "" while Azure has assigned none."""
    configurations = properties.get("ipConfigurations")
    if not isinstance(configurations, list):
        return ""
    inner = [_inner(configuration, "properties") for configuration in configurations]
    # A card with one configuration need not call it primary.
    primary = next((c for c in inner if c.get("primary")), inner[0] if inner else {})
    return str(primary.get("privateIPAddress") or "")


def _inner(record: object, key: str) -> Mapping[str, Any]:
    """The object at ``key``; empty if it is none. A strange card of others must not hide the
    addresses of our machines.
    """
    value = record.get(key) if isinstance(record, Mapping) else None
    return value if isinstance(value, Mapping) else {}
