"""``slurm-elastic key``: a new secret for the head and all living machines."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.units import counted
from slurm_elastic.cli import key_machines, key_slurm
from slurm_elastic.cli.giving_orders import duration
from slurm_elastic.cli.helptext import examples
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.config.joining import Ssh

if TYPE_CHECKING:
    from slurm_elastic.features.key_rotation import Rotation

WORDS = """\
munged has one key at a time: from the head's change to the last machine's, Slurm's messages
between them fail and are sent again. Running jobs go on; job steps that start just then may fail
(srun), and nodes may show as not responding until their next ping. The site's own nodes and login
nodes need the same key at the same time, by the site's own means: --head-command is the place for
that."""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "key",
        description="Change the munge key, or the keys of auth/slurm. See docs/keys.md.",
        epilog=examples("slurm-elastic key rotate --dry-run"),
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_rotate(actions)
    key_slurm.add(actions)


def _add_rotate(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    rotate = actions.add_parser(
        "rotate",
        help="bring a new key to all living machines, then change it everywhere",
        description="Lay a new key beside the old one on every living machine; where that "
        "worked everywhere, change it on the head and on the machines, and in the file that new "
        "machines get theirs from. Where a machine cannot change, all go back to the old one. Run "
        "it as root. With join.ssh.munge_key: "
        + " ".join(WORDS.split())
        + " With join.ssh.slurm_keys: "
        + " ".join(key_slurm.WORDS.split()),
        epilog=examples("slurm-elastic key rotate --dry-run", "slurm-elastic key rotate"),
    )
    rotate.add_argument(
        "--key", metavar="FILE",
        help="munge: take this key (32 to 1024 bytes) and not a fresh one",
    )  # fmt: skip
    rotate.add_argument(
        "--head-command", metavar="COMMAND",
        help="change the head by this, {key} being the new key's file (default: install it as "
        "/etc/munge/munge.key and restart munge.service; auth/slurm: reload slurmctld.service)",
    )  # fmt: skip
    rotate.add_argument(
        "--restart", metavar="COMMAND",
        help="have a machine use it by this (default: systemctl restart munge.service; auth/slurm: "
        "systemctl reload slurmd.service)",
    )  # fmt: skip
    rotate.add_argument(
        "--without-unreachable", action="store_true",
        help="change although some machines cannot be reached: their nodes are lost",
    )  # fmt: skip
    rotate.add_argument(
        "--dry-run", action="store_true",
        help="say which machines would change; lay nothing there",
    )  # fmt: skip
    rotate.add_argument(
        "--expires", metavar="TIME", type=duration,
        help="auth/slurm: the new keys end then (default: 90d)",
    )  # fmt: skip
    rotate.add_argument(
        "--overlap", metavar="TIME", type=duration,
        help="auth/slurm: the old keys end then (default: 1d)",
    )  # fmt: skip
    rotate.add_argument(
        "--revoke",
        action="store_true",
        help="auth/slurm: the old keys end now, as soon as all machines have the new ones",
    )
    rotate.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Rotate; 1 where nothing has changed in the end."""
    config = load(Path(args.config))
    ssh = config.join.ssh
    if ssh is None:
        raise ConfigError("join.ssh: found none; without it no machine gets its key from us")
    _refuse(args, ssh)
    keys = key_machines.module()
    usual = key_slurm.RELOAD if ssh.slurm_keys else keys.RESTART
    rotation = key_machines.living(config, ssh, args.restart or usual)
    nodes = [machine.instance.node for machine in rotation.machines]
    print(
        f"the key from us: {counted(len(nodes), 'machine')}"
        f"{': ' if nodes else ''}{key_machines.few(nodes)}"
    )
    if args.dry_run:
        print(key_slurm.WORDS if ssh.slurm_keys else WORDS)
        return 0
    if ssh.slurm_keys:
        return key_slurm.rotate(config, ssh, rotation, args, time.time())
    return _rotate_munge(config, ssh, rotation, args)


def _refuse(args: argparse.Namespace, ssh: Ssh) -> None:
    """ConfigError for an option of the other kind of key."""
    others = ("key",) if ssh.slurm_keys else ("expires", "overlap", "revoke")
    for name in others:
        if getattr(args, name):
            has = "slurm_keys" if ssh.slurm_keys else "munge_key"
            raise ConfigError(f"--{name}: found it with join.ssh.{has}, expected it without")


def _rotate_munge(config: Config, ssh: Ssh, rotation: Rotation, args: argparse.Namespace) -> int:
    keys = key_machines.module()
    text = keys.new_key(args.key)
    left = key_machines.lay(rotation, lambda _: text, lose=args.without_unreachable)
    _change(rotation, ssh, text, args.head_command or keys.HEAD, lose=args.without_unreachable)
    # A machine that came meanwhile may have got the key of before.
    late = key_machines.living(config, ssh, args.restart or keys.RESTART, rotation.machines)
    late.stage(lambda _: text)
    key_machines.told("started meanwhile, not changed", keys.failed(late.change()))
    print(f"changed: the head, {ssh.secret}, {counted(len(rotation.machines) - left, 'machine')}")
    print("the keys of before are beside the new ones (.before); remove them when all is well:")
    print("  scontrol ping && sinfo -R      # nodes answer, none is down for it")
    return 0


def _change(rotation: Rotation, ssh: Ssh, text: bytes, head: str, *, lose: bool) -> None:
    """The head first, then the machines; where one fails, unless some may be lost, all go back."""
    keys = key_machines.module()
    keys.put_copy(ssh, text)
    try:
        keys.on_head(head, ssh)
    except SlurmElasticError as error:
        keys.put_back(ssh)
        rotation.unstage()
        raise SlurmElasticError(f"the head keeps its key, nothing is changed: {error}") from None
    wrong = keys.failed(rotation.change())
    key_machines.told("not changed", wrong)
    if wrong and not lose:
        keys.put_back(ssh)
        keys.on_head(head, ssh)
        rotation.back()
        raise SlurmElasticError(f"{counted(len(wrong), 'machine')} cannot change: all went back")
