"""Slurm's own plugin with which jobs know the names of their nodes: nss_slurm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm_elastic.base.pages import page
from slurm_elastic.slurm.client.siteconf import SiteConf

LIBRARY = "libnss_slurm.so.2"
PLACES = (Path("/usr/lib"), Path("/usr/lib64"))


def notices(site: SiteConf, places: Sequence[Path] = PLACES) -> Iterator[str]:
    """A sentence if this host's Slurm has the plugin and slurm.conf does not switch it on."""
    if "enable_nss_slurm" in site.items("LaunchParameters"):
        return
    # Debian and Ubuntu have a directory below /usr/lib for each architecture.
    libraries = [p for place in places for p in (place / LIBRARY, *place.glob(f"*/{LIBRARY}"))]
    library = next((path for path in libraries if path.exists()), None)
    if library is not None:
        yield (
            f"this host has {library}: with LaunchParameters=enable_nss_slurm and the library in"
            f" images, jobs know the names of all their nodes at once ({page('network')})"
        )
