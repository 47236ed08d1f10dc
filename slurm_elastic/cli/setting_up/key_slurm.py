"""``slurm-elastic key`` with auth/slurm: the head's slurm.jwks, and a cloud's part of it.

The order keeps every message valid at every moment: first all machines learn the new keys, then
slurmctld signs with its new key, then the machines sign with theirs. The old keys expire by
themselves, or end at once with ``--revoke``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.units import brief, counted, does
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.orders.key_machines import (
    module,
    report_failures,
    rotation_of_living,
    take_head_back,
    take_machines_back,
    try_out,
)
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.config.sections.joining import Ssh
from slurm_elastic.slurm.client.site import read_site
from slurm_elastic.slurm.conf import keyset
from slurm_elastic.slurm.conf.keyset import KeySet

if TYPE_CHECKING:
    from slurm_elastic.features.network.key_rotation import Rotation

NOTICE = """\
Slurm accepts several keys at once: machines learn the new keys, then slurmctld signs with its new
key, then the machines sign with the key of their cloud. Running jobs continue; a job step that
starts in the second of slurmctld's reload may wait for a long time (srun). You must bring the new
slurm.jwks to the site's own nodes and login nodes within the overlap: use --head-command for
that."""
RELOAD = "systemctl reload slurmd.service"
HEAD = "systemctl reload slurmctld.service"
EXPIRES_S = 90 * 86400.0
OVERLAP_S = 86400.0
SETTLE_S = 5.0  # slurmd takes this long to read its keys again after the reload


def add(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    show = actions.add_parser(
        "show",
        help="auth/slurm: print the slurm.jwks of a cloud's machines, for an image",
        description="Print the slurm.jwks of a cloud's machines: all keys with which they verify "
        "slurmctld's messages, and the cloud's own, with which they sign. It is a secret.",
        epilog=examples("slurm-elastic key show aws"),
    )
    show.add_argument("cloud", metavar="CLOUD", help="a cloud of the configuration")
    show.set_defaults(run=run_show)
    convert = actions.add_parser(
        "convert",
        help="auth/slurm: print the slurm.jwks that fits a slurm.key",
        description="Print a slurm.jwks whose only key is the key of FILE. Daemons with the "
        "slurm.key and daemons with this file accept each other's messages. It is a secret.",
        epilog=examples("slurm-elastic key convert /etc/slurm/slurm.key"),
    )
    convert.add_argument("file", metavar="FILE", help="such as /etc/slurm/slurm.key")
    convert.set_defaults(run=run_convert)


def run_show(args: argparse.Namespace) -> int:
    config = load(Path(args.config))
    names = [cloud.name for cloud in config.clouds]
    if args.cloud not in names:
        raise ConfigError(f"there is no cloud {args.cloud!r}, only {', '.join(names)}")
    sys.stdout.write(_read(_file(config)).for_cloud(args.cloud, time.time()).encoded().decode())
    return 0


def run_convert(args: argparse.Namespace) -> int:
    try:
        text = Path(args.file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{args.file}: cannot be read: {error.strerror}") from error
    try:
        encoded = keyset.of_slurm_key(text).encoded()
        keyset.parse(encoded)
    except ValueError as error:
        raise ConfigError(f"{args.file}: {error}") from None
    sys.stdout.write(encoded.decode())
    return 0


def rotate(
    config: Config, ssh: Ssh, rotation: Rotation, args: argparse.Namespace, now: float
) -> int:
    """Change the keys of head and machines. Exit 1 if a machine still signs with its old key."""
    before, old_text = _read(Path(ssh.secret)), module().secret_now(ssh)
    overlap = args.overlap or OVERLAP_S
    clouds = [cloud.name for cloud in config.clouds if cloud.by_user_data]
    ends = now + (args.expires or EXPIRES_S)
    after = before.renewed(clouds, now, ends=ends, overlap=overlap)
    old = {key.kid for key in before.keys}
    fresh = KeySet(tuple(key for key in after.keys if key.kid not in old))
    head = args.head_command or HEAD
    lost = _bring_both_key_sets(rotation, before, after, now, lose=args.without_unreachable)
    try:
        module().make_head(ssh, after.encoded(), head)
    except SlurmElasticError as error:
        head_state = take_head_back(ssh, old_text, head)
        machines_state = _take_machines_back(rotation, before, now, lost)
        states = filter(None, (head_state, machines_state))
        result = "; ".join(states) or "it has its old keys, as all machines"
        raise SlurmElasticError(f"the head cannot take the new keys: {error}: {result}") from None
    unsigned = _sign(rotation, fresh if args.revoke else after, now)
    # A machine that started during the change may have got the old keys.
    late = rotation_of_living(config, ssh, args.restart or RELOAD, rotation.machines)
    unsigned |= _sign(late, fresh if args.revoke else after, now)
    print(f"new: {', '.join(key.kid for key in fresh.keys)}, for {brief(ends - now)}")
    # Ids and not numbers: a lost machine that answers again must not hide another machine.
    if failed := len(unsigned - lost):
        print(f"{counted(failed, 'machine')} {does(failed, 'sign')} with the old keys, for "
              f"{brief(overlap)}; nothing is revoked: rotate again when they answer")  # fmt: skip
        return 1
    if args.revoke:
        _revoke(ssh, after, fresh, head)
    print("the old keys have ended" if args.revoke else f"the old keys end in {brief(overlap)}")
    return 0


def _bring_both_key_sets(
    rotation: Rotation, before: KeySet, after: KeySet, now: float, *, lose: bool
) -> frozenset[str]:
    """Teach all machines the new keys; they still sign with the old ones.

    Returns the ids of machines that were not reached. Raises SlurmElasticError if another machine
    cannot change.
    """

    def both_key_sets(cloud: str) -> bytes:
        return before.for_cloud(cloud, now).joined(after.for_cloud(cloud, now)).encoded()

    lost = try_out(rotation, both_key_sets, lose=lose)
    wrong = module().failed(rotation.make(both_key_sets))
    report_failures("not changed", wrong)
    if failed := {result.id for result in wrong} - lost:
        state = _take_machines_back(rotation, before, now, lost) or "nothing is changed"
        raise SlurmElasticError(
            f"{counted(len(failed), 'machine')} cannot take the new keys: {state}"
        )
    if rotation.machines:
        time.sleep(SETTLE_S)
    return lost


def _take_machines_back(
    rotation: Rotation, before: KeySet, now: float, lost: frozenset[str]
) -> str:
    return take_machines_back(rotation, lambda cloud: before.for_cloud(cloud, now).encoded(), lost)


def _revoke(ssh: Ssh, after: KeySet, fresh: KeySet, head: str) -> None:
    """Let slurmctld refuse the old keys; if that fails, they end by themselves."""
    try:
        module().make_head(ssh, fresh.encoded(), head)
    except SlurmElasticError as error:
        state = (
            take_head_back(ssh, after.encoded(), head) or "it accepts the old keys until they end"
        )
        raise SlurmElasticError(f"the head cannot revoke the old keys: {error}: {state}") from None


def _sign(rotation: Rotation, keys: KeySet, now: float) -> frozenset[str]:
    """Have the machines sign with their new keys. Returns the ids of machines that do not."""
    wrong = module().failed(rotation.make(lambda cloud: keys.for_cloud(cloud, now).encoded()))
    report_failures("not changed", wrong)
    if rotation.machines:
        time.sleep(SETTLE_S)
    return frozenset(result.id for result in wrong)


def _file(config: Config) -> Path:
    """The path of the head's slurm.jwks."""
    ssh = config.join.ssh
    if ssh is not None and ssh.slurm_keys is not None:
        return Path(ssh.slurm_keys)
    return read_site(config.slurm).directory / "slurm.jwks"


def _read(path: Path) -> KeySet:
    try:
        return keyset.read(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
