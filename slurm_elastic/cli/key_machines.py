"""The machines of which ``key rotate`` changes the key, and what went wrong there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.base.units import counted
from slurm_elastic.cli.streams import visible
from slurm_elastic.config import Config
from slurm_elastic.config.joining import Ssh
from slurm_elastic.state.ledger import Ledger, Machine

if TYPE_CHECKING:
    from slurm_elastic.features.key_rotation import Result, Rotation


def module() -> ModuleType:
    """The rotation, which needs SSH; ConfigError where that is not installed."""
    try:
        from slurm_elastic.features import key_rotation
    except ModuleNotFoundError as error:
        raise ConfigError(f"join.ssh: {missing_module(error, 'ssh')}") from error
    return key_rotation


def living(config: Config, ssh: Ssh, restart: str, without: Sequence[Machine] = ()) -> Rotation:
    """The change of keys of the machines that live now, but for some."""
    keys = module()
    known = {(m.instance.cloud, m.instance.id) for m in without}
    path = config.state / "ledger.db"
    with config.sharing(), contextlib.closing(Ledger(path, read_only=True)) as ledger:
        found = ledger.machines.live()
    others = [m for m in found if (m.instance.cloud, m.instance.id) not in known]
    rotation: Rotation = keys.Rotation(config, ssh, others, restart=restart)
    return rotation


def lay(rotation: Rotation, text_for: Callable[[str], bytes], *, lose: bool) -> int:
    """Lay the key everywhere; how many machines were not reached, where those may be lost."""
    absent = module().failed(rotation.stage(text_for))
    told("not laid there", absent)
    if absent and not lose:
        rotation.unstage()
        raise SlurmElasticError(
            f"{counted(len(absent), 'machine')} cannot be reached, nothing is changed: end them, "
            "wait for them, or add --without-unreachable"
        )
    return len(absent)


def told(what: str, wrong: Sequence[Result]) -> None:
    """Name these machines on standard error."""
    for one in wrong:
        print(visible(f"{one.node}: {what}: {one.wrong}"), file=sys.stderr)


def few(names: Sequence[str]) -> str:
    """The first of them."""
    shown = ", ".join(names[:8])
    return f"{shown}, ..." if len(names) > 8 else shown
