"""``slurm-elastic key``: a new secret for the head and all living machines."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.pages import page
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.base.units import counted
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.orders import key_machines
from slurm_elastic.cli.orders.giving_orders import duration
from slurm_elastic.cli.setting_up import key_slurm
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.config.sections.joining import Ssh

if TYPE_CHECKING:
    from slurm_elastic.features.network.key_rotation import Rotation

NOTICE = """\
munged has one key at a time. Until the last machine has changed, Slurm's messages between changed
and unchanged hosts fail and are sent again. Running jobs continue; job steps that start during the
change may fail (srun), and nodes may show as not responding until their next ping. You must bring
the same key to the site's own nodes and login nodes at the same time: use --head-command for
that."""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "key",
        description=f"Change the munge key, or the keys of auth/slurm. See {page('keys')}.",
        epilog=examples("slurm-elastic key rotate --dry-run"),
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_rotate(actions)
    key_slurm.add(actions)


def _add_rotate(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    rotate = actions.add_parser(
        "rotate",
        help="bring a new key to all living machines, then change it everywhere",
        description="Prove that every running machine can take a new key. If so, change the key in "
        "the file for new machines, on the head, and on the machines. If one machine cannot "
        "change, all return to the old key. Run it as root. With join.ssh.munge_key: "
        + " ".join(NOTICE.split())
        + " With join.ssh.slurm_keys: "
        + " ".join(key_slurm.NOTICE.split()),
        epilog=examples("slurm-elastic key rotate --dry-run", "slurm-elastic key rotate"),
    )
    rotate.add_argument(
        "--key", metavar="FILE",
        help="munge: use this key (32 to 1024 bytes) instead of a random one",
    )  # fmt: skip
    rotate.add_argument(
        "--head-command", metavar="COMMAND",
        help="change the head with this command; {key} is the new key's file (default: install it "
        "as /etc/munge/munge.key and restart munge.service; auth/slurm: reload slurmctld.service)",
    )  # fmt: skip
    rotate.add_argument(
        "--restart", metavar="COMMAND",
        help="activate the key on a machine with this command (default: systemctl restart "
        "munge.service; auth/slurm: systemctl reload slurmd.service)",
    )  # fmt: skip
    rotate.add_argument(
        "--without-unreachable", action="store_true",
        help="change even if the proof does not reach some machines: their nodes are lost",
    )  # fmt: skip
    rotate.add_argument(
        "--dry-run", action="store_true",
        help="list the machines that would change, and change nothing",
    )  # fmt: skip
    rotate.add_argument(
        "--expires", metavar="TIME", type=duration,
        help="auth/slurm: the new keys expire after this time (default: 90d)",
    )  # fmt: skip
    rotate.add_argument(
        "--overlap", metavar="TIME", type=duration,
        help="auth/slurm: the old keys expire after this time (default: 1d)",
    )  # fmt: skip
    rotate.add_argument(
        "--revoke",
        action="store_true",
        help="auth/slurm: the old keys end as soon as all machines have the new keys",
    )
    rotate.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Rotate the keys. Exit 1 if a machine still signs with its old key (auth/slurm), or if a
    machine that started during the change could not be changed (munge).

    Raises ConfigError for wrong options, SlurmElasticError if all keys stay as they are.
    """
    config = load(Path(args.config))
    ssh = config.join.ssh
    if ssh is None:
        raise ConfigError("join.ssh: found none; without it we cannot bring keys to machines")
    _refuse(args, config, ssh)
    if args.dry_run:
        return _run(config, ssh, args)
    # Before anything is read: the keys and machines of before another rotation are outdated.
    with key_machines.sole_rotation(config):
        return _run(config, ssh, args)


def _run(config: Config, ssh: Ssh, args: argparse.Namespace) -> int:
    keys = key_machines.module()
    usual = key_slurm.RELOAD if ssh.slurm_keys else keys.RESTART
    rotation = key_machines.rotation_of_living(config, ssh, args.restart or usual)
    nodes = [machine.instance.node for machine in rotation.machines]
    print(
        f"machines whose key we change: {counted(len(nodes), 'machine')}"
        f"{': ' if nodes else ''}{key_machines.abbreviated(nodes)}"
    )
    if args.dry_run:
        print(key_slurm.NOTICE if ssh.slurm_keys else NOTICE)
        return 0
    if ssh.slurm_keys:
        return key_slurm.rotate(config, ssh, rotation, args, time.time())
    return _rotate_munge(config, ssh, rotation, args)


def _refuse(args: argparse.Namespace, config: Config, ssh: Ssh) -> None:
    """ConfigError for an option that fits only the other kind of key, or if no command changes the
    head, or both heads.
    """
    if not args.head_command and config.ha.directory is not None:
        raise ConfigError(
            "--head-command: found none with ha.directory, expected the command that brings {key} "
            f"to both heads, also as {ssh.secret}: after a takeover the other head would bring the "
            "old key to new machines"
        )
    if not args.head_command and not service_remedies.has_systemd():
        raise ConfigError(
            "--head-command: found none, expected the command that lets the head read its new key: "
            "no systemd runs here"
        )
    foreign_options = ("key",) if ssh.slurm_keys else ("expires", "overlap", "revoke")
    for name in foreign_options:
        if getattr(args, name):
            has = "slurm_keys" if ssh.slurm_keys else "munge_key"
            raise ConfigError(f"--{name}: found it with join.ssh.{has}, expected it without")


def _rotate_munge(config: Config, ssh: Ssh, rotation: Rotation, args: argparse.Namespace) -> int:
    keys = key_machines.module()
    old, text = keys.secret_now(ssh), keys.new_key(args.key)
    lost = key_machines.try_out(rotation, lambda _: text, lose=args.without_unreachable)
    unchanged = _change(rotation, ssh, old, text, args.head_command or keys.HEAD, lost)
    # A machine that started during the change may have got the old key.
    late = key_machines.rotation_of_living(
        config, ssh, args.restart or keys.RESTART, rotation.machines
    )
    late_unchanged = keys.failed(late.make(lambda _: text))
    key_machines.report_failures("started during the change, not changed", late_unchanged)
    changed = counted(len(rotation.machines) - unchanged, "machine")
    print(f"changed: the head, {ssh.secret}, {changed}")
    print("  scontrol ping && sinfo -R      # nodes answer, none is down because of it")
    return 1 if late_unchanged else 0


def _change(
    rotation: Rotation, ssh: Ssh, old: bytes, text: bytes, head: str, lost: frozenset[str]
) -> int:
    """Change the head first, then the machines. Return how many machines are not changed.

    ``lost``: the ids of machines that could not be reached before. If another machine fails, all
    machines return to the old key (SlurmElasticError).
    """
    keys = key_machines.module()
    try:
        keys.make_head(ssh, text, head)
    except ConfigError:
        raise  # the file for new machines could not be written, so nothing is changed
    except SlurmElasticError as error:
        # The command may have brought the new key before it failed.
        state = key_machines.take_head_back(ssh, old, head) or "it has its old key, as all machines"
        raise SlurmElasticError(f"the head cannot take the new key: {error}: {state}") from None
    wrong = keys.failed(rotation.make(lambda _: text))
    key_machines.report_failures("not changed", wrong)
    if needed := [result for result in wrong if result.id not in lost]:
        head_state = key_machines.take_head_back(ssh, old, head)
        machines_state = key_machines.take_machines_back(rotation, lambda _: old, lost)
        state = "; ".join(filter(None, (head_state, machines_state)))
        raise SlurmElasticError(
            f"{counted(len(needed), 'machine')} cannot take the new key: "
            + (state or "all use the old key again")
        )
    return len(wrong)
