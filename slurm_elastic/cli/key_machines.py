"""The machines whose key ``key rotate`` changes, and the report of failures there."""

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
    from slurm_elastic.features.key_rotation import Rotation, RotationResult


def module() -> ModuleType:
    """The module of the rotation. ConfigError if the packages for SSH are not installed."""
    try:
        from slurm_elastic.features import key_rotation
    except ModuleNotFoundError as error:
        raise ConfigError(f"join.ssh: {missing_module(error, 'ssh')}") from error
    return key_rotation


def rotation_of_living(
    config: Config, ssh: Ssh, restart: str, without: Sequence[Machine] = ()
) -> Rotation:
    """The rotation for all running machines, except those in ``without``."""
    keys = module()
    excluded = {(m.instance.cloud, m.instance.id) for m in without}
    path = config.state / "ledger.db"
    with config.sharing(), contextlib.closing(Ledger(path, read_only=True)) as ledger:
        machines = ledger.machines.live()
    remaining = [m for m in machines if (m.instance.cloud, m.instance.id) not in excluded]
    rotation: Rotation = keys.Rotation(config, ssh, remaining, restart=restart)
    return rotation


def lay(rotation: Rotation, text_for: Callable[[str], bytes], *, lose: bool) -> int:
    """Place the new key on all machines. Return how many machines were not reached (``lose``).

    SlurmElasticError without ``lose`` if any machine was not reached. All machines keep their old
    key in that case.
    """
    absent = module().failed(rotation.stage(text_for))
    report_failures("the key was not placed", absent)
    if absent and not lose:
        rotation.unstage()
        raise SlurmElasticError(
            f"{counted(len(absent), 'machine')} cannot be reached, nothing is changed: end them, "
            "retry when they answer, or add --without-unreachable"
        )
    return len(absent)


def report_failures(failure: str, results: Sequence[RotationResult]) -> None:
    """Print each machine with its error on standard error."""
    for result in results:
        print(visible(f"{result.node}: {failure}: {result.wrong}"), file=sys.stderr)


def abbreviated(names: Sequence[str]) -> str:
    """The first eight names as a text, which ends with dots if there are more."""
    shown = ", ".join(names[:8])
    return f"{shown}, ..." if len(names) > 8 else shown
