"""Why a pending job gets no machine: the verdict on each pool, for ``explain`` and ``price``."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.one_line import one_line
from slurm_elastic.cli.reports.shortened import words
from slurm_elastic.config import Config
from slurm_elastic.features.waits.wait_situation import WaitFacts, situation_of
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.verdict import Verdict, grouped
from slurm_elastic.policies.launch.waiting import fixed_arrays
from slurm_elastic.policies.waits.situation import NODES
from slurm_elastic.policies.waits.wait import Waits
from slurm_elastic.slurm.client.site import read_site
from slurm_elastic.slurm.client.siteconf import SiteConf
from slurm_elastic.slurm.hooks import submit_filter
from slurm_elastic.watch.door.questions import Chain
from slurm_elastic.watch.view.rows import Facts

ROWS = 8  # most reasons without --all
MAX_REASON_LENGTH = 320  # most characters of a reason without --all: enough for a cloud's own error
_NARROW = 20


def waits_now(config: Config, job: SlurmJob, chain: Chain, facts: Facts) -> Waits:
    """Return the answers why jobs wait, also for partitions that ``job`` does not list.

    They are made from Slurm (``facts``), slurm.conf and the ledger (``chain``). If a source cannot
    be read, it excludes no pool.
    """
    site = site_of(config)
    wait_facts = WaitFacts(
        now=facts.now,
        obstacles=chain.obstacles,
        nodes=facts.nodes,
        partition_states=facts.partition_states,
        max_times=facts.max_times,
        reservations=facts.reservations,
        hides_nodes=NODES in chain.private,
        fixed_arrays=fixed_arrays(facts.jobs),
        default=default_partition(site),
        groups=_groups(job),
        client_timeout_s=submit_filter.client_boot_timeout_s(site),
        unlisted=submit_filter.trouble(Path(config.slurm.conf)),
    )
    return Waits(situation_of(config, wait_facts))


def site_of(config: Config) -> SiteConf | None:
    """The site's slurm.conf; None if it cannot be read."""
    with contextlib.suppress(ConfigError):
        return read_site(config.slurm)
    return None


def default_partition(site: SiteConf | None) -> str:
    """The name of the default partition of slurm.conf; "" if there is none."""
    records = site.partitions if site else ()
    named = (r.names[0] for r in records if r.names and r.get("default").lower() == "yes")
    return next(named, "")


def _groups(job: SlurmJob) -> frozenset[str] | None:
    """The names of the user's groups; None if this host does not know the user."""
    try:
        user = pwd.getpwuid(job.uid) if job.uid >= 0 else pwd.getpwnam(job.user)
        return frozenset(
            grp.getgrgid(gid).gr_name for gid in os.getgrouplist(user.pw_name, user.pw_gid)
        )
    except (KeyError, OSError):
        return None


def show(verdicts_shown: tuple[Verdict, ...], console: Console, rows: int | None = None) -> None:
    """Print the verdicts, pools with the same reason in one row; at most ``rows`` rows."""
    groups = grouped(verdicts_shown)
    if not groups:
        return
    console.print("Why it gets no machine, by cloud and pool:")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold", max_width=_NARROW)
    table.add_column(overflow="fold")
    for cloud, pools, reason in groups[:rows]:
        names = ", ".join(pools) if len(pools) <= 2 else f"{pools[0]} and {len(pools) - 1} more"
        short = reason if rows is None else one_line(reason, MAX_REASON_LENGTH)
        table.add_row(Text(f"  {cloud}: {names}"), words(short))
    console.print(table)
    if rows is not None and groups[rows:]:
        console.print(f"  and {len(groups) - rows} more reasons (--all)")
