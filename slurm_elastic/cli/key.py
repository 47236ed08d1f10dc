"""``slurm-elastic key``: a new munge key for the head and all living machines."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.streams import visible
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.config.joining import Ssh
from slurm_elastic.errors import ConfigError, SlurmElasticError
from slurm_elastic.ledger import Ledger, Machine

if TYPE_CHECKING:
    from slurm_elastic.controller.key_rotation import Result, Rotation

WORDS = """\
munged has one key at a time: from the head's change to the last machine's, Slurm's messages
between them fail and are sent again. Running jobs go on; job steps that start just then may fail
(srun), and nodes may show as not responding until their next ping. The site's own nodes and login
nodes need the same key at the same time, by the site's own means: --head-command is the place for
that."""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register ``key`` and its action."""
    parser = subparsers.add_parser(
        "key",
        description="Change the munge key. See docs/keys.md.",
        epilog=examples("slurm-elastic key rotate --dry-run"),
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    rotate = actions.add_parser(
        "rotate",
        help="bring a new munge key to all living machines, then change it everywhere",
        description="Lay a new munge key beside the old one on every living machine; where that "
        "worked everywhere, change it on the head and on the machines, and in the copy that new "
        "machines get. Where a machine cannot change, all go back to the old one. Run it as root. "
        + " ".join(WORDS.split()),
        epilog=examples("slurm-elastic key rotate --dry-run", "slurm-elastic key rotate"),
    )
    rotate.add_argument(
        "--key", metavar="FILE", help="take this key (32 to 1024 bytes) and not a fresh one"
    )
    rotate.add_argument(
        "--head-command", metavar="COMMAND",
        help="change the head by this, {key} being the new key's file (default: install it as "
        "/etc/munge/munge.key and restart munge.service)",
    )  # fmt: skip
    rotate.add_argument(
        "--restart", metavar="COMMAND",
        help="restart munged on a machine by this (default: systemctl restart munge.service)",
    )  # fmt: skip
    rotate.add_argument(
        "--without-unreachable", action="store_true",
        help="change although some machines cannot be reached: their nodes are lost",
    )  # fmt: skip
    rotate.add_argument(
        "--dry-run", action="store_true",
        help="say which machines would change; lay nothing there",
    )  # fmt: skip
    rotate.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Rotate; 1 where nothing has changed in the end."""
    config = load(Path(args.config))
    ssh = config.join.ssh
    if ssh is None:
        raise ConfigError("join.ssh: found none; without it no machine gets its key from us")
    keys = _module()
    rotation = _living(config, ssh, args.restart)
    nodes = [machine.instance.node for machine in rotation.machines]
    print(f"{len(nodes)} machine(s) have the key from us{': ' if nodes else ''}{_few(nodes)}")
    if args.dry_run:
        print(WORDS)
        return 0
    text = keys.new_key(args.key)
    left = _lay(rotation, text, lose=args.without_unreachable)
    _change(rotation, ssh, text, args.head_command or keys.HEAD, lose=args.without_unreachable)
    # A machine that came meanwhile may have got the key of before.
    late = _living(config, ssh, args.restart, rotation.machines)
    late.stage(text)
    _told("started meanwhile, not changed", keys.failed(late.change()))
    print(f"changed: the head, {ssh.munge_key}, {len(nodes) - left} machine(s)")
    print("the keys of before are beside the new ones (.before); remove them when all is well:")
    print("  scontrol ping && sinfo -R      # nodes answer, none is down for it")
    return 0


def _module() -> ModuleType:
    try:
        from slurm_elastic.controller import key_rotation
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"join.ssh: Python module {error.name!r} is missing; install slurm-elastic[ssh]"
        ) from error
    return key_rotation


def _living(
    config: Config, ssh: Ssh, restart: str | None, without: Sequence[Machine] = ()
) -> Rotation:
    keys = _module()
    known = {(m.instance.cloud, m.instance.id) for m in without}
    with contextlib.closing(Ledger(config.state / "ledger.db", read_only=True)) as ledger:
        found = ledger.machines()
    others = [m for m in found if (m.instance.cloud, m.instance.id) not in known]
    rotation: Rotation = keys.Rotation(config, ssh, others, restart=restart or keys.RESTART)
    return rotation


def _lay(rotation: Rotation, text: bytes, *, lose: bool) -> int:
    """Lay the key everywhere; how many machines were not reached, where those may be lost."""
    absent = _module().failed(rotation.stage(text))
    _told("not laid there", absent)
    if absent and not lose:
        rotation.unstage()
        raise SlurmElasticError(
            f"{len(absent)} machine(s) cannot be reached, nothing is changed: end them, wait for "
            "them, or add --without-unreachable"
        )
    return len(absent)


def _change(rotation: Rotation, ssh: Ssh, text: bytes, head: str, *, lose: bool) -> None:
    """The head first, then the machines; where one fails, unless some may be lost, all go back."""
    keys = _module()
    keys.put_copy(ssh, text)
    try:
        keys.on_head(head, ssh)
    except SlurmElasticError as error:
        keys.put_back(ssh)
        rotation.unstage()
        raise SlurmElasticError(f"the head keeps its key, nothing is changed: {error}") from None
    wrong = keys.failed(rotation.change())
    _told("not changed", wrong)
    if wrong and not lose:
        keys.put_back(ssh)
        keys.on_head(head, ssh)
        rotation.back()
        raise SlurmElasticError(f"{len(wrong)} machine(s) cannot change: all went back")


def _told(what: str, wrong: Sequence[Result]) -> None:
    for one in wrong:
        print(visible(f"{one.node}: {what}: {one.wrong}"), file=sys.stderr)


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown}, ..." if len(names) > 8 else shown
