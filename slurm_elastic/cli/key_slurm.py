"""``slurm-elastic key`` with auth/slurm: the head's slurm.jwks, and a cloud's part of it. Nothing
is refused at any moment: first all machines learn the new keys, then slurmctld signs with its new
one, then the machines do; the old ones end by themselves, or at once with ``--revoke``.
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
from slurm_elastic.cli.key_machines import lay, living, module, told
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.config.joining import Ssh
from slurm_elastic.slurm.client.site import read_site
from slurm_elastic.slurm.conf import keyset
from slurm_elastic.slurm.conf.keyset import KeySet

if TYPE_CHECKING:
    from slurm_elastic.features.key_rotation import Rotation

WORDS = """\
Slurm knows several keys at once: machines learn the new ones, then slurmctld signs with its new
one, then the machines with that of their cloud. Running jobs go on; a job step that starts in the
second in which slurmctld is reloaded may wait for long (srun). The site's own nodes and login nodes
need the new slurm.jwks within the overlap, by the site's own means: --head-command is the place for
that."""
RELOAD = "systemctl reload slurmd.service"
HEAD = "systemctl reload slurmctld.service"
EXPIRES = 90 * 86400.0
OVERLAP = 86400.0
SETTLE = 5.0  # seconds that slurmd takes to read its keys anew once it has been told to


def add(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    show = actions.add_parser(
        "show",
        help="auth/slurm: print the slurm.jwks of a cloud's machines, for an image",
        description="Print the slurm.jwks of a cloud's machines: everybody's keys, so that they "
        "hear slurmctld, and the cloud's own, with which they sign. It is a secret.",
        epilog=examples("slurm-elastic key show aws"),
    )
    show.add_argument("cloud", metavar="CLOUD", help="one of the configuration")
    show.set_defaults(run=run_show)
    convert = actions.add_parser(
        "convert",
        help="auth/slurm: print the slurm.jwks that fits a slurm.key",
        description="Print a slurm.jwks whose one key is that of FILE. Daemons that have the "
        "slurm.key and such that have this file believe each other. It is a secret.",
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
        made = keyset.of_slurm_key(text).encoded()
        keyset.parse(made)
    except ValueError as error:
        raise ConfigError(f"{args.file}: {error}") from None
    sys.stdout.write(made.decode())
    return 0


def rotate(
    config: Config, ssh: Ssh, rotation: Rotation, args: argparse.Namespace, now: float
) -> int:
    """Change the keys of head and machines; 1 where a machine still signs with its old one."""
    before = _read(Path(ssh.secret))
    overlap = args.overlap or OVERLAP
    clouds = [cloud.name for cloud in config.clouds if cloud.by_user_data]
    ends = now + (args.expires or EXPIRES)
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
    left = _sign(rotation, fresh if args.revoke else after, now)
    # A machine that came meanwhile may have got the keys of before.
    late = living(config, ssh, args.restart or RELOAD, rotation.machines)
    left += _sign(late, fresh if args.revoke else after, now)
    print(f"new: {', '.join(key.kid for key in fresh.keys)}, for {brief(ends - now)}")
    if left > lost:
        more = left - lost
        print(f"{counted(more, 'machine')} {does(more, 'sign')} with the old keys, for "
              f"{brief(overlap)}; nothing is revoked: rotate again when they answer")  # fmt: skip
        return 1
    if args.revoke:
        _put(ssh, fresh, head)
    print("the old keys have ended" if args.revoke else f"the old keys end in {brief(overlap)}")
    return 0


def _teach(rotation: Rotation, before: KeySet, after: KeySet, now: float, *, lose: bool) -> int:
    """All machines learn the new keys and sign as before; how many were not reached."""

    def known(cloud: str) -> bytes:
        return before.for_cloud(cloud, now).joined(after.for_cloud(cloud, now)).encoded()

    lost = lay(rotation, known, lose=lose)
    wrong = module().failed(rotation.change())
    told("not changed", wrong)
    if len(wrong) > lost:
        rotation.back()
        raise SlurmElasticError(
            f"{counted(len(wrong), 'machine')} cannot change: nothing is changed"
        )
    if rotation.machines:
        time.sleep(SETTLE)
    return lost


def _put(ssh: Ssh, keys: KeySet, head: str) -> None:
    """The head's file, and slurmctld with it; the file of before where that fails."""
    rotating = module()
    rotating.put_copy(ssh, keys.encoded())
    try:
        rotating.on_head(head, ssh)
    except SlurmElasticError:
        rotating.put_back(ssh)
        raise


def _sign(rotation: Rotation, keys: KeySet, now: float) -> int:
    """The machines sign with their new keys; how many do not."""
    rotating = module()
    laid = rotating.failed(rotation.stage(lambda cloud: keys.for_cloud(cloud, now).encoded()))
    wrong = {one.node: one for one in (*rotating.failed(rotation.change()), *laid)}
    told("not changed", list(wrong.values()))
    if rotation.machines:
        time.sleep(SETTLE)
    return len(wrong)


def _file(config: Config) -> Path:
    """The head's slurm.jwks."""
    ssh = config.join.ssh
    if ssh is not None and ssh.slurm_keys is not None:
        return Path(ssh.slurm_keys)
    return read_site(config.slurm).directory / "slurm.jwks"


def _read(path: Path) -> KeySet:
    try:
        return keyset.read(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
