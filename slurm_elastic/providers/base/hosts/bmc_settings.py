"""The settings of hosts whose power is switched by their BMCs or by a command of the site."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from slurm_elastic.config.basics.readable_url import is_readable_url

_BMC_URL = re.compile(r"(https://[^/\s]+|http://(localhost|127\.[\d.]+|\[::1\])(:\d+)?)/\S+")
"""A BMC's password gives full control of its host. Without TLS it may be sent only within this
host.
"""


def is_bmc_url(url: str) -> bool:
    """Whether the URL names a system of a BMC."""
    return bool(_BMC_URL.fullmatch(url)) and is_readable_url(url)


class BmcSettings(Protocol):
    """The part of a cloud's settings that its BMCs need. ``hosts``: by name, the URL of the host's
    system at its BMC, or the argument that ``command`` takes for it.
    """

    @property
    def name(self) -> str:
        """The cloud's name."""
        ...

    @property
    def hosts(self) -> Mapping[str, str]:
        """By name, the URL of the host's system at its BMC, or the argument of ``command`` for the
        host.
        """
        ...

    @property
    def credentials_file(self) -> str | None:
        """A JSON file with username and password."""
        ...

    @property
    def ca_file(self) -> str | None:
        """The authority of the BMCs' certificates; None: the system's."""
        ...

    @property
    def command(self) -> tuple[str, ...]:
        """A program of the site that switches the hosts instead; empty if there is none."""
        ...

    @property
    def api_timeout(self) -> float:
        """Seconds in which a call must end."""
        ...
