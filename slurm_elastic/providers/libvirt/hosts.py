"""Connections to the hosts, and what libvirt says of them as the five errors of ours.

A connection whose host is silent ends by libvirt's keepalive, and what waits on it with it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache, partial
from types import ModuleType
from typing import Any

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.base.lasting import LastingThread
from slurm_elastic.providers.base.aside import AsideHosts, Meaning
from slurm_elastic.providers.base.distribution import from_distribution
from slurm_elastic.providers.libvirt.settings import LibvirtCloud

_SENTENCES: tuple[tuple[str, Meaning], ...] = (
    ("disk quota exceeded", (QuotaError, "DiskQuota")),
    ("no space left on device", (CapacityError, "NoSpace")),
    ("cannot allocate memory|cannot set up guest memory", (CapacityError, "NoMemory")),
    # A volume to which a connection that was lost still writes.
    ("is still in use|is still being allocated", (TransientError, "Busy")),
)
"""The first that is in a message decides; the words are the C library's, qemu's and libvirt's."""
_NO_ENTRY = re.compile("permission denied|host key verification failed", re.IGNORECASE)
"""The words of ssh, and of a socket."""
_DENIED: Meaning = (AuthError, "Denied")
_UNREACHABLE: Meaning = (TransientError, "Unreachable")
_CODES: tuple[tuple[str, Meaning], ...] = (
    ("AUTH_FAILED AUTH_CANCELLED AUTH_UNAVAILABLE ACCESS_DENIED OPERATION_DENIED", _DENIED),
    ("NO_CONNECT INVALID_CONN RPC OPERATION_TIMEOUT OPERATION_ABORTED", _UNREACHABLE),
    ("RESOURCE_BUSY", (TransientError, "Busy")),
    ("NO_STORAGE_POOL", (ProviderError, "NoStorage")),
    ("NO_STORAGE_VOL", (ProviderError, "NoVolume")),
    ("NO_NETWORK", (ProviderError, "NoNetwork")),
)
"""Names of libvirt's virErrorNumber."""


@cache
def bindings() -> ModuleType:
    """The module ``libvirt``. ConfigError where there is none."""
    advice = "install the distribution's python3-libvirt, or libvirt-python beside slurm-elastic"
    module = from_distribution("libvirt", advice)
    module.registerErrorHandler(lambda *_: None, None)  # else it prints them
    module.virEventRegisterDefaultImpl()  # keepalive goes by it
    LastingThread("libvirt's events", partial(_serve_events, module)).start()
    return module


def _serve_events(module: ModuleType) -> None:
    while True:
        module.virEventRunDefaultImpl()


class LibvirtHosts(AsideHosts[Any]):
    """All calls to a cloud's hosts go through here. The bindings have no types."""

    def __init__(self, settings: LibvirtCloud) -> None:
        names = tuple(settings.hosts)
        super().__init__(settings.name, names, settings.timeout, settings.threads + 4)
        self._settings = settings
        self.failure = bindings().libvirtError

    def _opened(self, host: str) -> Any:  # noqa: ANN401
        fresh = bindings().open(self._settings.hosts[host].uri)
        with suppress(self.failure):  # the test driver in our process has none
            fresh.setKeepAlive(max(1, int(self._settings.timeout / 4)), 3)
        return fresh

    def _meaning(self, error: Any) -> Meaning:  # noqa: ANN401
        libvirt, text = bindings(), str(error)
        for pattern, kind in _SENTENCES:
            if re.search(pattern, text, re.IGNORECASE):
                return kind
        if error.get_error_domain() in (libvirt.VIR_FROM_RPC, libvirt.VIR_FROM_REMOTE):
            return _DENIED if _NO_ENTRY.search(text) else _UNREACHABLE
        code = error.get_error_code()
        for names, kind in _CODES:
            if code in [getattr(libvirt, f"VIR_ERR_{name}") for name in names.split()]:
                return kind
        return ProviderError, f"Libvirt{code}"
