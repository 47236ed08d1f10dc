"""``slurm-elastic-hub``: the root service that keeps the head's tunnel and firewall."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.processes.lasting import LastingThread
from slurm_elastic.base.processes.signals import accept_ends
from slurm_elastic.cli.arguments import add_config
from slurm_elastic.cli.helptext import Command, examples
from slurm_elastic.cli.services.root_service import serve, uid_of
from slurm_elastic.cli.streams import log_plainly, prepare, visible
from slurm_elastic.config import Config, configfile
from slurm_elastic.config.sections.joining import Network
from slurm_elastic.machine.hub.service import Hub
from slurm_elastic.state.heads import Epochs, OtherHead


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM. The tunnel and the firewall rules stay after the service has ended.

    Exit 2: wrong configuration or not root; 1: another error.
    """
    accept_ends()
    prepare()
    arguments = parser().parse_args(argv)
    log_plainly(logging.INFO)
    try:
        if os.geteuid() != 0:
            raise ConfigError("this is for root, who starts it as a service")
        config = configfile.load(arguments.config)
        network = config.join.network
        if network is None:
            raise ConfigError("join.network is not configured: there is nothing to serve")
        uids = {0, os.getuid(), uid_of(config)}
        Path(network.socket).parent.mkdir(parents=True, exist_ok=True)
        hub = _hub(config, network)
    except (SlurmElasticError, OSError) as error:
        print(f"slurm-elastic-hub: {visible(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    serve(hub.answer, Path(network.socket), uids)
    return 0


def _hub(config: Config, network: Network) -> Hub:
    """Start the hub and its threads."""
    if config.ha.directory is None:
        hub = Hub(network, config.slurm.conf)
    else:
        other = OtherHead(Epochs(Path(config.ha.directory)), os.uname().nodename)
        hub = Hub(network, config.slurm.conf, partial(_acting, config, other))
    hub.start()
    if network.tunnels:
        LastingThread("calls", hub.keep_calling).start()
    if config.ha.directory is not None:
        LastingThread("two heads", hub.keep_apart).start()
    return hub


def _acting(config: Config, other: OtherHead) -> str:
    """The other head that acts. Read it as SlurmUser, because of root_squash of NFS."""
    with config.sharing():
        return other.acting()


def parser() -> argparse.ArgumentParser:
    command = Command(
        prog="slurm-elastic-hub",
        description="Keep the head's end of join.network as root: the tunnel to machines, and the "
        "firewall. slurm-elasticd decides which machines may connect.",
        epilog=examples("slurm-elastic-hub --config /etc/slurm-elastic/slurm-elastic.yaml"),
    )
    add_config(command)
    return command


if __name__ == "__main__":
    sys.exit(main())
