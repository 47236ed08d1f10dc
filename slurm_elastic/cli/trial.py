"""``slurm-elastic try``: one machine of a cloud, from the order to its end, each step told.

The machine comes the way that all machines come: slurmctld is told to power a node up, calls
ResumeProgram, and slurm-elasticd buys it within the site's caps. So whatever becomes of this
command, the daemon ends the machine when it is idle.
"""

from __future__ import annotations

import argparse
import os
import pwd
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.units import money
from slurm_elastic.cli import offers
from slurm_elastic.cli.arguments import count
from slurm_elastic.cli.giving_orders import is_alive, require_trusted
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.service_environment import as_the_services
from slurm_elastic.cli.trial_run import StoppedError, Trial, tell
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.configfile import load
from slurm_elastic.config.limit_changes import pools_in, scope_named
from slurm_elastic.model.cluster import Pool
from slurm_elastic.policies.launch.trial import (
    Step,
    diagnosis,
)
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.watch.door.records import read_facts

LOOKED_FOR = 600.0  # seconds of paid time that the estimate counts


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "try",
        description="Start one machine of a cloud or a pool as a job would, follow it through "
        "every step to a job on it, end it, and say how long each step took or what broke and "
        "what to do. Says first what it costs. Ctrl-C ends the machine. For root and SlurmUser.",
        epilog=examples("slurm-elastic try aws", "slurm-elastic try burst --yes"),
    )
    parser.add_argument("subject", metavar="POOL|CLOUD", help="the pool or cloud to try")
    parser.add_argument("--yes", action="store_true", help="do not ask before anything is paid")
    parser.add_argument(
        "--user", metavar="NAME",
        help="run the job as this user (default: who runs this command, also behind sudo)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=count, metavar="SECONDS",
        help="give up after this time without registration (default: the cloud's resume_timeout)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when every step was made; 1 where one was not, 2 for wrong use, 130 after Ctrl-C."""
    config = load(Path(args.config))
    require_trusted(config)
    scope = scope_named(config, args.subject)
    user = _user(args.user)
    facts = read_facts(config, time.time())
    if not is_alive(config, facts):
        raise SlurmElasticError("slurm-elasticd does not run: nothing would be started")
    slurm = PromptCli(config.slurm)
    with as_the_services(args.config, config):
        try:
            pool = _offered(config, slurm, pools_in(config, scope))
        except StoppedError as stopped:
            tell(stopped.found)
            return 1
        if not args.yes and not _agreed():
            print("nothing was started")
            return 2
        return Trial(config, slurm, pool, user, args.timeout).run()


def _user(name: str | None) -> pwd.struct_passwd:
    wanted = name or (os.environ.get("SUDO_USER") if os.geteuid() == 0 else None)
    try:
        return pwd.getpwnam(wanted) if wanted else pwd.getpwuid(os.getuid())
    except KeyError:
        raise ConfigError(f"--user: this host has no user {wanted!r}") from None


def _agreed() -> bool:
    if not sys.stdin.isatty():
        print("say --yes where nobody can be asked", file=sys.stderr)
        return False
    return input("Start it? [y/N] ").strip().lower() in ("y", "yes")


def _offered(config: Config, slurm: PromptCli, names: Sequence[str]) -> Pool:
    """The first pool with an offer, told with its price. StoppedError where there is none."""
    reasons: list[str] = []
    for name in names:
        (found,) = offers.gather(config, slurm, time.time(), pool=name, nodes=1).pools
        if found.error:
            reasons.append(found.error)
        elif found.ranked:
            best = found.ranked[0]
            price, worst = best.price or 0.0, best.worst or best.price or 0.0
            most = worst * LOOKED_FOR / 3600
            print(f"One machine of pool {name}: {best.offer}")
            about = f"about {money(most)} for 10 minutes"
            print(f"{money(price)}/h now, {money(worst)}/h at worst: {about}.")
            return next(p for p in domain_pools(config, expand) if p.name == name)
        else:
            reasons += [row.reason for row in found.rejected] or ["the cloud has no offers"]
    raise StoppedError(diagnosis(Step.LAUNCHED, reasons))
