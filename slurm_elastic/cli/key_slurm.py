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
from slurm_elastic.cli.key_machines import lay, module, report_failures, rotation_of_living
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.config.joining import Ssh
from slurm_elastic.slurm.client.site import read_site
from slurm_elastic.slurm.conf import keyset
from slurm_elastic.slurm.conf.keyset import KeySet

if TYPE_CHECKING:
    from slurm_elastic.features.key_rotation import Rotation

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
    before = _read(Path(ssh.secret))
    overlap = args.overlap or OVERLAP_S
    clouds = [cloud.name for cloud in config.clouds if cloud.by_user_data]
    ends = now + (args.expires or EXPIRES_S)
    after = before.renewed(clouds, now, ends=ends, overlap=overlap)
    old = {key.kid for key in before.keys}
    fresh = KeySet(tuple(key for key in after.keys if key.kid not in old))
    head = args.head_command or HEAD
    lost = _teach(rotation, before, after, now, lose=args.without_unreachable)
    try:
        _put(ssh, after, head)
    except SlurmElasticError as error:
        rotation.back()
        raise SlurmElasticError(f"the head keeps its keys, nothing is changed: {error}") from None
    unsigned = _sign(rotation, fresh if args.revoke else after, now)
    # A machine that started during the change may have got the old keys.
    late = rotation_of_living(config, ssh, args.restart or RELOAD, rotation.machines)
    unsigned += _sign(late, fresh if args.revoke else after, now)
    print(f"new: {', '.join(key.kid for key in fresh.keys)}, for {brief(ends - now)}")
    if unsigned > lost:
        failed = unsigned - lost
        print(f"{counted(failed, 'machine')} {does(failed, 'sign')} with the old keys, for "
              f"{brief(overlap)}; nothing is revoked: rotate again when they answer")  # fmt: skip
        return 1
    if args.revoke:
        _put(ssh, fresh, head)
    print("the old keys have ended" if args.revoke else f"the old keys end in {brief(overlap)}")
    return 0


def _teach(rotation: Rotation, before: KeySet, after: KeySet, now: float, *, lose: bool) -> int:
    """Teach all machines the new keys; they still sign with the old ones.

    Returns how many machines were not reached. Raises SlurmElasticError if another machine cannot
    change.
    """

    def both_key_sets(cloud: str) -> bytes:
        return before.for_cloud(cloud, now).joined(after.for_cloud(cloud, now)).encoded()

    lost = lay(rotation, both_key_sets, lose=lose)
    wrong = module().failed(rotation.change())
    report_failures("not changed", wrong)
    if len(wrong) > lost:
        rotation.back()
        raise SlurmElasticError(
            f"{counted(len(wrong), 'machine')} cannot take the new keys, so nothing is changed"
        )
    if rotation.machines:
        time.sleep(SETTLE_S)
    return lost


def _put(ssh: Ssh, keys: KeySet, head: str) -> None:
    """Replace the head's file and have slurmctld read it; if that fails, restore the old file."""
    rotating = module()
    rotating.put_copy(ssh, keys.encoded())
    try:
        rotating.on_head(head, ssh)
    except SlurmElasticError:
        rotating.put_back(ssh)
        raise


def _sign(rotation: Rotation, keys: KeySet, now: float) -> int:
    """Have the machines sign with their new keys. Returns how many machines do not."""
    rotating = module()
    laid = rotating.failed(rotation.stage(lambda cloud: keys.for_cloud(cloud, now).encoded()))
    wrong = {result.node: result for result in (*rotating.failed(rotation.change()), *laid)}
    report_failures("not changed", list(wrong.values()))
    if rotation.machines:
        time.sleep(SETTLE_S)
    return len(wrong)


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
