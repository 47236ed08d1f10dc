"""Connections to the hosts, and the translation of libvirt's errors into ours.

If a host is silent, libvirt's keepalive ends the connection and every call that waits on it.
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
from slurm_elastic.base.processes.lasting import LastingThread
from slurm_elastic.providers.base.aside import AsideHosts, Meaning
from slurm_elastic.providers.base.distribution import from_distribution
from slurm_elastic.providers.libvirt.settings import LibvirtCloud

_ERROR_BY_TEXT: tuple[tuple[str, Meaning], ...] = (
    ("disk quota exceeded", (QuotaError, "DiskQuota")),
    ("no space left on device", (CapacityError, "NoSpace")),
    ("cannot allocate memory|cannot set up guest memory", (CapacityError, "NoMemory")),
    # A lost connection may still be writing to the volume.
    ("is still in use|is still being allocated", (TransientError, "Busy")),
)
"""The first pattern that matches decides. The texts are from the C library, qemu and libvirt."""
_NO_ENTRY = re.compile("permission denied|host key verification failed", re.IGNORECASE)
"""The texts of ssh, and of a socket that we may not use."""
_DENIED: Meaning = (AuthError, "Denied")
_UNREACHABLE: Meaning = (TransientError, "Unreachable")
_ERROR_BY_CODE: tuple[tuple[str, Meaning], ...] = (
    ("AUTH_FAILED AUTH_CANCELLED AUTH_UNAVAILABLE ACCESS_DENIED OPERATION_DENIED", _DENIED),
    ("NO_CONNECT INVALID_CONN RPC OPERATION_TIMEOUT OPERATION_ABORTED", _UNREACHABLE),
    ("RESOURCE_BUSY", (TransientError, "Busy")),
    ("NO_STORAGE_POOL", (ProviderError, "NoStorage")),
    ("NO_STORAGE_VOL", (ProviderError, "NoVolume")),
    ("NO_NETWORK", (ProviderError, "NoNetwork")),
)
"""Names in libvirt's virErrorNumber."""


@cache
def bindings() -> ModuleType:
    """The module ``libvirt``. ConfigError if it is not installed."""
    advice = "install the distribution's python3-libvirt, or libvirt-python beside slurm-elastic"
    module = from_distribution("libvirt", advice)
    module.registerErrorHandler(lambda *_: None, None)  # by default it prints errors
    module.virEventRegisterDefaultImpl()  # keepalive needs an event loop
    LastingThread("libvirt's events", partial(_serve_events, module)).start()
    return module


def _serve_events(module: ModuleType) -> None:
    while True:
        module.virEventRunDefaultImpl()


class LibvirtHosts(AsideHosts[Any]):
    """All calls to a cloud's hosts go through this class. The bindings have no types."""

    def __init__(self, settings: LibvirtCloud) -> None:
        names = tuple(settings.hosts)
        # Four more than launches use, so that a listing can run beside a launch.
        super().__init__(settings.name, names, settings.api_timeout, settings.threads + 4)
        self._settings = settings
        self.failure = bindings().libvirtError

    def _opened(self, host: str) -> Any:  # noqa: ANN401
        connection = bindings().open(self._settings.hosts[host].uri)
        with suppress(self.failure):  # the test driver in our process has no keepalive
            # libvirt closes a connection after (count + 1) intervals without an answer, here after
            # the time-out (virConnectSetKeepAlive).
            connection.setKeepAlive(max(1, int(self._settings.api_timeout / 4)), 3)
        return connection

    def _meaning(self, error: Any) -> Meaning:  # noqa: ANN401
        libvirt, text = bindings(), str(error)
        for pattern, kind in _ERROR_BY_TEXT:
            if re.search(pattern, text, re.IGNORECASE):
                return kind
        if error.get_error_domain() in (libvirt.VIR_FROM_RPC, libvirt.VIR_FROM_REMOTE):
            return _DENIED if _NO_ENTRY.search(text) else _UNREACHABLE
        code = error.get_error_code()
        for names, kind in _ERROR_BY_CODE:
            if code in [getattr(libvirt, f"VIR_ERR_{name}") for name in names.split()]:
                return kind
        return ProviderError, f"Libvirt{code}"
