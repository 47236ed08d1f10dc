"""``slurm-elastic-local``: the root service that starts and ends the machines of a local cloud."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.processes.signals import accept_ends
from slurm_elastic.cli.arguments import add_config, pause
from slurm_elastic.cli.helptext import Command, examples
from slurm_elastic.cli.services.root_service import serve, uid_of
from slurm_elastic.cli.streams import log_plainly, prepare, visible
from slurm_elastic.config import Config, configfile
from slurm_elastic.machine.local.agent import LocalAgent
from slurm_elastic.machine.local.driver import AgentSettings
from slurm_elastic.providers.local.settings import LocalCloud


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM. The machines keep running after the agent has ended.

    Exit 2: wrong configuration; 1: another error.
    """
    accept_ends()
    prepare()
    arguments = parser().parse_args(argv)
    log_plainly(logging.INFO)
    try:
        config = configfile.load(arguments.config)
        cloud = _cloud(config, arguments.cloud)
        agent = LocalAgent(_settings(config, cloud, arguments))
    except (SlurmElasticError, OSError) as error:
        print(f"slurm-elastic-local: {visible(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    try:
        serve(agent.answer, Path(cloud.socket), {0, os.getuid(), uid_of(config)})
    finally:
        agent.close()
    return 0


def parser() -> argparse.ArgumentParser:
    command = Command(
        prog="slurm-elastic-local",
        description="Start and end the slurmd's of a cloud with provider local, on this host and "
        "as root, for slurm-elasticd.",
        epilog=examples("slurm-elastic-local --cloud onprem"),
    )
    add_config(command)
    command.add_argument(
        "--cloud", help="serve this cloud; needed only if there are several local ones"
    )
    command.add_argument(
        "--boot",
        type=pause,
        default=1.0,
        metavar="SECONDS",
        help="delay the start of each slurmd (default: 1, because slurmctld does not accept a boot"
        " in the same second in which it asked for it)",
    )
    command.add_argument(
        "--never-boot", default="", metavar="NODES", help="start no slurmd for these nodes"
    )
    logs = Path("/var/log/slurm-elastic")
    command.add_argument(
        "--log-dir", type=Path, default=logs, metavar="DIR",
        help="write the output of each slurmd here (default: %(default)s)",
    )  # fmt: skip
    return command


def _cloud(config: Config, name: str | None) -> LocalCloud:
    clouds = [c for c in config.clouds if isinstance(c, LocalCloud) and name in (None, c.name)]
    if len(clouds) == 1:
        return clouds[0]
    if not clouds:
        which = "no cloud" if name is None else f"no cloud {name!r}"
        raise ConfigError(f"{which} with provider local is configured")
    names = ", ".join(c.name for c in clouds)
    raise ConfigError(f"several clouds have provider local ({names}): name one with --cloud")


def _settings(config: Config, cloud: LocalCloud, arguments: argparse.Namespace) -> AgentSettings:
    socket = Path(cloud.socket)
    hostlists = [p.nodes for p in config.pools if p.cloud == cloud.name]
    return AgentSettings(
        nodes=frozenset(node for text in hostlists for node in expand(text)),
        directory=socket.with_name(f"{socket.name}.machines"),
        slurm_conf=config.slurm.conf,
        slurmd=str(Path(config.slurm.sbin_dir) / "slurmd"),
        log_dir=arguments.log_dir,
        capacity=cloud.capacity,
        boot=arguments.boot,
        never_boot=frozenset(expand(arguments.never_boot) if arguments.never_boot else ()),
    )


if __name__ == "__main__":
    sys.exit(main())
