"""Whether a plain job gets our partitions, tried on a throw-away slurmctld: the production one is
not asked, so no job number is used up.

The site's job_submit.lua runs there as it does at the site. If its job gets none of our partitions,
a second slurmctld shows what the filter alone would give the same job.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config
from slurm_elastic.model.finding import Finding
from slurm_elastic.slurm.conf import dryrun, plan
from slurm_elastic.slurm.conf.dryrun import Submission
from slurm_elastic.slurm.conf.plan import ConfPlan
from slurm_elastic.slurm.hooks import submit_filter

WHAT = "a plain job on a throw-away slurmctld"
NOBODY = "nobody"
Scripts = Mapping[str, str]


def examine(config: Config, planned: ConfPlan, account: str, user: str) -> Iterator[Finding]:
    """Submit a job that names no partition, as ``user`` (if this is root) with ``account``."""
    ours = submit_filter.ranked_partitions(config)
    scripts = _scripts(planned.site.directory)
    if not ours or not scripts:
        return  # nothing to be listed, or told by the check of the filter
    isolation = dryrun.isolation()
    if isolation is None:
        yield Finding.note(WHAT, "not tried: unshare may not make a network namespace here")
        return

    def tried(texts: Scripts) -> Submission:
        return dryrun.submit_job(
            config.slurm, planned.site, planned.fragment, isolation, texts, gres=planned.gres,
            options=[f"--account={account}"] if account else [],
            user=(user or NOBODY) if os.geteuid() == 0 else None,
        )  # fmt: skip

    found = tried(scripts)
    if found.failure:
        yield Finding.note(WHAT, f"not tried: {found.failure}")
    elif any(name in ours for name in found.partitions):
        yield Finding.ok(WHAT, f"it gets {','.join(found.partitions)}")
    else:
        own = submit_filter.render(config, planned.pools, planned.site)
        yield from _compared(found, tried(own), ours)


def _scripts(directory: Path) -> Scripts:
    """The Lua files beside slurm.conf, which job_submit.lua may load; none without that one."""
    try:
        texts = {path.name: path.read_text(errors="replace") for path in directory.glob("*.lua")}
    except OSError:
        return {}
    return texts if submit_filter.PLUGIN_SCRIPT in texts else {}


def _compared(found: Submission, alone: Submission, ours: list[str]) -> Iterator[Finding]:
    """What the site's script makes of the job, beside what the filter alone makes of it."""
    expected = ",".join(alone.partitions)
    if found.refusal and not alone.refusal and not alone.failure:
        yield Finding.wrong(
            WHAT,
            f"sbatch refuses it: {found.refusal.splitlines()[-1]}",
            expected=f"partitions {expected}, which it gets without the site's own script",
            advice=f"what {submit_filter.PLUGIN_SCRIPT} does to jobs that name no partition",
        )
    elif any(name in ours for name in alone.partitions):
        yield Finding.wrong(
            WHAT,
            f"it gets {','.join(found.partitions)} only: the site's {submit_filter.PLUGIN_SCRIPT}"
            " leaves no plain job to the clouds",
            expected=f"partitions {expected}, which it gets without that script",
            advice="slurm-elastic conf check prints the two lines that go to its end",
        )
    else:
        reason = found.refusal.splitlines()[-1:] or [f"it gets {','.join(found.partitions)}"]
        yield Finding.note(WHAT, f"no cloud may be listed for it: {reason[0]}")


def planned_of(config: Config) -> ConfPlan | None:
    """The plan of what is installed; None if another check says what is wrong with it."""
    try:
        return plan.make(config) if plan.is_installed(config) else None
    except ConfigError:
        return None
