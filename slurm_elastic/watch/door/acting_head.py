"""Which of two heads acts, for who may read the shared directory (``ha.directory``)."""

from __future__ import annotations

from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config
from slurm_elastic.slurm.client.acting import controllers
from slurm_elastic.state.heads import Epochs
from slurm_elastic.watch.view.rows import HeadView

RESTART = "systemctl restart slurm-elasticd slurm-elastic-ckptman"


def read_head(config: Config, directory: Path, now: float) -> HeadView:
    """By Slurm's word, and the newest epoch; it says itself where that cannot be read."""
    try:
        pair = controllers(config.slurm.conf)
        acting, last = pair.acting_host(now), Epochs(directory).newest()
    except (OSError, ConfigError) as error:
        return HeadView(told=f"Head: who acts cannot be told: {error}")
    do = ""
    here, number = pair.hosts[pair.place], last.number if last else 0
    if not acting:
        told = f"Head: no slurmctld acts, epoch {number} of {last.holder if last else 'nobody'}"
    elif last is not None and pair.place_of(last.host) != pair.place_of(acting):
        told = (
            f"Head: Slurm acts on {acting}, and no service has taken over there: epoch {number} is "
            f"of {last.holder}"
        )
        do = f"if this lasts for a minute, on {acting}: {RESTART}"
    elif acting == here:
        told = f"Head: {acting} acts, this one, epoch {number}"
    else:
        told = f"Head: {acting} acts, epoch {number}; this one, {here}, stands by"
    return HeadView(told=told, hosts=pair.hosts, acting=acting, here=here, epoch=number, do=do)
