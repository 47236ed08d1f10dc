"""Says which head acts, for users who may read the shared directory (``ha.directory``)."""

from __future__ import annotations

from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.config import Config
from slurm_elastic.slurm.client.acting import controllers
from slurm_elastic.state.heads import Epochs
from slurm_elastic.watch.view.rows import HeadView


def restart_both() -> str:
    """The command that restarts both services on a head."""
    return service_remedies.restart("slurm-elasticd", "slurm-elastic-ckptman")


def read_head(config: Config, directory: Path, now: float) -> HeadView:
    """The acting head, according to Slurm and to the newest epoch, or the error of reading them."""
    try:
        pair = controllers(config.slurm.conf)
        acting, newest = pair.acting_host(now), Epochs(directory).newest()
    except (OSError, ConfigError) as error:
        return HeadView(told=f"Head: it is unknown which head acts: {error}")
    do = ""
    here, number = pair.hosts[pair.place], newest.number if newest else 0
    if not acting:
        sentence = (
            f"Head: no slurmctld acts, epoch {number} of {newest.holder if newest else 'nobody'}"
        )
    elif newest is not None and pair.place_of(newest.host) != pair.place_of(acting):
        sentence = (
            f"Head: Slurm acts on {acting}, and no service has taken over there: epoch {number} is "
            f"of {newest.holder}"
        )
        do = f"if this lasts for a minute, on {acting}: {restart_both()}"
    elif acting == here:
        sentence = f"Head: {acting} acts, this one, epoch {number}"
    else:
        sentence = f"Head: {acting} acts, epoch {number}; this one, {here}, stands by"
    return HeadView(told=sentence, hosts=pair.hosts, acting=acting, here=here, epoch=number, do=do)
