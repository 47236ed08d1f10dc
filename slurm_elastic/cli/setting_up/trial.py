"""``slurm-elastic try``: start one machine of a cloud, report each step, and end it.

The machine starts as all machines do: slurmctld is ordered to power a node up and calls
ResumeProgram, and slurm-elasticd buys the machine within the site's caps. So even if this command
dies, the daemon ends the machine when it is idle.
"""

from __future__ import annotations

import argparse
import os
import pwd
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.base.billing import billed_dollars, paid_seconds
from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.units import money
from slurm_elastic.cli.arguments import count
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.jobs import offers
from slurm_elastic.cli.orders.giving_orders import is_alive, require_trusted
from slurm_elastic.cli.services.service_environment import as_the_services
from slurm_elastic.cli.setting_up.trial_run import StoppedError, Trial, print_stop
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.configfile import load
from slurm_elastic.config.limit_changes import pools_in, scope_named
from slurm_elastic.config.pool_rules import rules_of
from slurm_elastic.model.cluster import Pool
from slurm_elastic.policies.launch.trial import (
    TrialStep,
    diagnosis,
)
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.watch.door.records import read_facts

ESTIMATED_S = 600.0  # the cost estimate is for this long


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "try",
        description="Start one machine of a cloud or a pool as a job would, follow every step "
        "until a job has run on it, and end it. Print how long each step took, or what broke and "
        "what to do. The cost is shown first. Ctrl-C ends the machine. For root and SlurmUser.",
        epilog=examples("slurm-elastic try aws", "slurm-elastic try burst --yes"),
    )
    parser.add_argument("subject", metavar="POOL|CLOUD", help="the pool or cloud to try")
    parser.add_argument("--yes", action="store_true", help="do not ask before anything is paid")
    parser.add_argument(
        "--user", metavar="NAME",
        help="run the job as this user (default: the user who runs this command, also with sudo)",
    )  # fmt: skip
    parser.add_argument(
        "--account", metavar="NAME", default="",
        help="run the job with this account (default: SBATCH_ACCOUNT, else the user's own)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=count, metavar="SECONDS",
        help="give up if the node has not registered after this time (default: the cloud's "
        "resume_timeout)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the trial. Exit 0: every step succeeded; 1: one failed; 2: not started; 130: Ctrl-C.

    Raises ConfigError for wrong options, SlurmElasticError if slurm-elasticd does not run.
    """
    config = load(Path(args.config))
    require_trusted(config)
    scope = scope_named(config, args.subject)
    user = _user(args.user)
    facts = read_facts(config, time.time())
    if not is_alive(config, facts):
        raise SlurmElasticError("slurm-elasticd is not running: no machine would be started")
    slurm = PromptCli(config.slurm)
    with as_the_services(args.config, config):
        try:
            pool = _first_offered_pool(config, slurm, pools_in(config, scope))
            trial = Trial(config, slurm, pool, user, args.timeout, args.account)
            trial.require_job()
        except StoppedError as stopped:
            print_stop(stopped.diagnosed)
            return 1
        if not args.yes and not _is_agreed():
            print("nothing was started")
            return 2
        return trial.run()


def _user(name: str | None) -> pwd.struct_passwd:
    user_name = name or (os.environ.get("SUDO_USER") if os.geteuid() == 0 else None)
    try:
        return pwd.getpwnam(user_name) if user_name else pwd.getpwuid(os.getuid())
    except KeyError:
        raise ConfigError(f"--user: this host has no user {user_name!r}") from None


def _is_agreed() -> bool:
    if not sys.stdin.isatty():
        print("this is no terminal: add --yes to start the machine", file=sys.stderr)
        return False
    return input("Start it? [y/N] ").strip().lower() in ("y", "yes")


def _first_offered_pool(config: Config, slurm: PromptCli, names: Sequence[str]) -> Pool:
    """Print and return the first pool that has an offer. StoppedError if none has."""
    reasons: list[str] = []
    for name in names:
        (pool_offers,) = offers.gather(config, slurm, time.time(), pool=name, nodes=1).pools
        if pool_offers.error:
            reasons.append(pool_offers.error)
        elif pool_offers.ranked:
            best = pool_offers.ranked[0]
            price, worst = best.price or 0.0, best.worst or best.price or 0.0
            pool = next(p for p in config.pools if p.name == name)
            increment_s = rules_of(config, pool).lease
            estimate = billed_dollars(worst, paid_seconds(ESTIMATED_S, increment_s))
            print(f"One machine of pool {name}: {best.offer}")
            about = f"about {money(estimate)} for 10 minutes"
            print(f"{money(price)}/h now, {money(worst)}/h at worst: {about}.")
            return next(p for p in domain_pools(config, expand) if p.name == name)
        else:
            reasons += [row.reason for row in pool_offers.rejected] or ["the cloud has no offers"]
    raise StoppedError(diagnosis(TrialStep.LAUNCHED, reasons))
