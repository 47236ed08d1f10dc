"""Which plug-ins the site's Slurm has, by the files that are there."""

from __future__ import annotations

from pathlib import Path

from slurm_elastic.slurm.siteconf import Site

_PLUGIN_DIRS = ("/usr/lib/*/slurm-wlm", "/usr/lib64/slurm", "/usr/lib/*/slurm", "/usr/lib/slurm")


def has_plugin(site: Site, name: str) -> bool:
    """Whether the site's Slurm has this plug-in."""
    entry = site.option("PluginDir")
    if entry is not None:
        return any((Path(place) / f"{name}.so").exists() for place in entry.value.split(":"))
    found = (Path("/").glob(f"{place[1:]}/{name}.so") for place in _PLUGIN_DIRS)
    return any(any(paths) for paths in found)
