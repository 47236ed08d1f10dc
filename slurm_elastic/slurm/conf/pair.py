"""Two heads (``ha.directory``): whether slurm.conf and our configuration mean the same ones."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_elastic.config import Config
from slurm_elastic.slurm.client.acting import takeover, timeout_of
from slurm_elastic.slurm.client.siteconf import SiteConf

_PAGE = "docs/two-heads.md"


def notices(config: Config, site: SiteConf) -> Iterator[str]:
    """What an admin should know; nothing with one head, or two that fit."""
    heads = site.options("SlurmctldHost")
    names = ", ".join(head.value.partition("(")[0] for head in heads) or "none"
    if config.ha.directory is None:
        if len(heads) > 1:
            yield (
                f"{heads[1].where}: slurm.conf names {len(heads)} controllers ({names}), and"
                " ha.directory is not set: the services run on one of them; while another one is in"
                f" control nothing is launched or ended ({_PAGE})"
            )
        return
    if len(heads) < 2:
        yield (
            f"{heads[0].where if heads else site.path}: found SlurmctldHost {names}, expected two"
            f" such lines, as ha.directory is set: nobody would take over ({_PAGE})"
        )
        return
    needed, grace = takeover(timeout_of(site)), config.timings.grace
    if grace < needed:
        # After a takeover that the services see nothing ends for that long, whatever it is.
        yield (
            f"timings.grace: found {grace:g} s, expected {needed:g} s or more (2 x SlurmctldTimeout"
            f" of {site.path} + 60 s): where Slurm takes over and back while our services do not"
            f" run, a machine may end that Slurm is about to ask for again ({_PAGE})"
        )
