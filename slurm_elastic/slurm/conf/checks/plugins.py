"""Whether the site's Slurm has a plug-in, found by its file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.config import SlurmSettings
from slurm_elastic.slurm.client.siteconf import SiteConf

_PLACES = ("lib*/slurm", "lib*/slurm-wlm", "lib/*/slurm", "lib/*/slurm-wlm")
"""Below the prefix that Slurm was built for: SchedMD's own, the RPMs' and Debian's directories."""


def has_plugin(settings: SlurmSettings, site: SiteConf, name: str) -> bool:
    """Whether the site's Slurm has this plug-in."""
    return any((place / f"{name}.so").exists() for place in _directories(settings, site))


def _directories(settings: SlurmSettings, site: SiteConf) -> Iterator[Path]:
    entry = site.option("PluginDir")
    if entry is not None:
        yield from (Path(directory) for directory in entry.value.split(":"))
        return
    # If /sbin is a link to /usr/sbin, the libraries are below /usr.
    prefix = Path(settings.sbin_dir).resolve().parent
    for directory in _PLACES:
        yield from prefix.glob(directory)
