"""The machines whose key ``key rotate`` changes, and the report of failures there."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.extras import missing_module
from slurm_elastic.base.units import counted
from slurm_elastic.cli.streams import visible
from slurm_elastic.config import Config
from slurm_elastic.config.sections.joining import Ssh
from slurm_elastic.state import locks
from slurm_elastic.state.heads import Fence, SupersededError
from slurm_elastic.state.ledger import Ledger, Machine

if TYPE_CHECKING:
    from slurm_elastic.features.network.key_rotation import Rotation, RotationResult

LOCK = "key-rotation.lock"
TextFor = Callable[[str], bytes]
"""Returns the key for the machines of a cloud."""


def module() -> ModuleType:
    """The module of the rotation. ConfigError if the packages for SSH are not installed."""
    try:
        from slurm_elastic.features.network import key_rotation
    except ModuleNotFoundError as error:
        raise ConfigError(f"join.ssh: {missing_module(error, 'ssh')}") from error
    return key_rotation


@contextlib.contextmanager
def sole_rotation(config: Config) -> Iterator[None]:
    """Run the body as the only rotation of the cluster. SlurmElasticError if another one runs, or
    if another head acts.

    Two rotations at once would leave hosts with different keys: each brings its own key to all
    hosts, and none waits for the other.
    """
    # Two heads must see one lock, because a takeover may come during a rotation.
    directory = Path(config.ha.directory) if config.ha.directory else config.state
    try:
        with config.sharing():
            if config.ha.directory:
                Fence.of(directory).require()
            lock = locks.take(directory / LOCK)
    except SupersededError as error:
        raise SlurmElasticError(f"key rotate: {error}") from None
    except locks.HeldError as error:
        by = f" ({error.holder})" if error.holder else ""
        raise SlurmElasticError(
            f"another key rotate runs{by}: wait for its end, then rotate again if a new key is "
            "still needed"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"key rotate: cannot lock {directory / LOCK}, so another rotation might run: "
            f"{error.strerror or error}"
        ) from error
    try:
        yield
    finally:
        os.close(lock)


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


def try_out(rotation: Rotation, text_for: TextFor, *, lose: bool) -> frozenset[str]:
    """Prove that all machines can take the new key. Returns the ids of machines that cannot
    (``lose``). SlurmElasticError without ``lose`` if there are any.
    """
    absent = module().failed(rotation.try_out(text_for))
    report_failures("it cannot get the key", absent)
    if absent and not lose:
        raise SlurmElasticError(
            f"{counted(len(absent), 'machine')} cannot be reached, nothing is changed: end them, "
            "retry when they answer, or add --without-unreachable"
        )
    return frozenset(result.id for result in absent)


def take_head_back(ssh: Ssh, old: bytes, head: str) -> str:
    """Make the head use its old key again. Returns what could not be taken back, or ""."""
    keys = module()
    try:
        keys.make_head(ssh, old, head)
    except SlurmElasticError as error:
        return (
            f"the head may use either key, because it could not be taken back: {error}. When "
            f"{ssh.secret} has the old key, run as root: {keys.command_line_of(head, ssh)}"
        )
    return ""


def take_machines_back(
    rotation: Rotation, old_for: TextFor, lost: frozenset[str] = frozenset()
) -> str:
    """Make all machines use their old key again. Returns what could not be taken back, or "".
    ``lost``: the ids of machines that never got the new key.
    """
    wrong = [r for r in module().failed(rotation.make(old_for)) if r.id not in lost]
    report_failures("it may still use the new key", wrong)
    if not wrong:
        return ""
    return (
        f"{counted(len(wrong), 'machine')} may still use the new key: run slurm-elastic key rotate "
        "when they answer"
    )


def report_failures(failure: str, results: Sequence[RotationResult]) -> None:
    """Print each machine with its error on standard error."""
    for result in results:
        print(visible(f"{result.node}: {failure}: {result.wrong}"), file=sys.stderr)


def abbreviated(names: Sequence[str]) -> str:
    """The first eight names as a text, which ends with dots if there are more."""
    shown = ", ".join(names[:8])
    return f"{shown}, ..." if len(names) > 8 else shown
