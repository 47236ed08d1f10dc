"""The option ``--pool`` of ``plan reserve`` and ``plan own``."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.simulate.scenario import PoolModel


def pool_index(name: str | None, pools: Sequence[PoolModel]) -> int:
    """Return the number of the named pool, or of the only public one. ConfigError if it is not
    clear which pool is meant, or if its machines always run.
    """
    names = [pool.name for pool in pools]
    bought = [pool.name for pool in pools if pool.standing < pool.machines or not pool.machines]
    if name is None:
        public = [pool.name for pool in pools if pool.public and pool.name in bought]
        if len(public) != 1:
            raise ConfigError(f"--pool is needed: found public pools {', '.join(public) or 'none'}")
        return names.index(public[0])
    if name not in names:
        raise ConfigError(f"--pool: found {name!r}, expected one of {', '.join(names)}")
    if name not in bought:
        raise ConfigError(
            f"--pool: the machines of {name!r} always run, so there is nothing to choose;"
            f" expected one of {', '.join(bought) or 'none'}"
        )
    return names.index(name)
