"""Whether a plain job gets our partitions, tried on a throw-away slurmctld, and a job that names a
partition of ``allow.partitions``.

The production slurmctld is not asked, so that no job number is used up. The site's job_submit.lua
runs as it does at the site. If its job gets no partition of ours, a second slurmctld shows what the
filter alone would give the same job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.finding import Finding
from slurm_elastic.slurm.client.commands.sbatch_test_only import UNSPECIFIED
from slurm_elastic.slurm.conf import allowed_partitions, dryrun, plan
from slurm_elastic.slurm.conf.checks import account_tree
from slurm_elastic.slurm.conf.dryrun import DryRunSubmission
from slurm_elastic.slurm.conf.plan import ConfPlan
from slurm_elastic.slurm.hooks import submit_filter

PLAIN_JOB = "plain job"
WHERE = "on a throw-away slurmctld"
NOBODY = "nobody"
BY_SITE = f"refused by the site's own {submit_filter.PLUGIN_SCRIPT}"
OTHER_ACCOUNT = "if the site demands an account, name one: slurm-elastic doctor --account NAME"
Scripts = Mapping[str, str]


class _Trial(Struct, frozen=True, kw_only=True):
    """A job to submit. ``partition``: what it names ("": none). ``clouds``: our partitions
    that are open to it. ``cloud``: the first of them, by whose rules the user is chosen.
    """

    partition: str
    clouds: tuple[str, ...]
    cloud: CloudSettings

    @property
    def subject(self) -> str:
        return f"a {self.noun} {WHERE}"

    @property
    def noun(self) -> str:
        return f"job of partition {self.partition}" if self.partition else PLAIN_JOB


def examine(
    config: Config, planned: ConfPlan, submitter_of: Callable[[CloudSettings], tuple[str, str]]
) -> Iterator[Finding]:
    """Submit a job that names no partition, and one for each other partition whose jobs may use a
    cloud. ``submitter_of``: the account and, if this is root, the user of a job for a cloud.
    """
    trials, scripts = _trials(config, planned), _scripts(planned.site.directory)
    if not trials or not scripts:
        return  # no partition to get, or the check of the filter reports it
    isolation = dryrun.isolation()
    if isolation is None:
        yield Finding.note(
            trials[0].subject, "not tried: unshare may not make a network namespace here"
        )
        return
    for trial in trials:
        account, user = submitter_of(trial.cloud)
        options = [f"--account={account}"] if account else []
        options += [f"--partition={trial.partition}"] if trial.partition else []

        def submit_with(
            lua_files: Scripts, options: Sequence[str] = options, user: str = user
        ) -> DryRunSubmission:
            return dryrun.submit_job(
                config.slurm, planned.site, planned.fragment, isolation, lua_files,
                gres=planned.gres, options=options,
                user=(user or NOBODY) if os.geteuid() == 0 else None,
            )  # fmt: skip

        yield from _try(trial, config, planned, scripts, submit_with)


def _trials(config: Config, planned: ConfPlan) -> list[_Trial]:
    ranked, default = submit_filter.ranked_partitions(config), planned.site.default_partition
    trials = []
    for record, clouds in allowed_partitions.clouds_by_partition(config, planned.site):
        usable = {c.partition_name: c for c in clouds if c.partition_name in ranked}
        if usable:
            trials.append(
                _Trial(
                    partition="" if record is default else record.names[0],
                    clouds=tuple(name for name in ranked if name in usable),
                    cloud=next(iter(usable.values())),
                )
            )
    return trials


def _try(
    trial: _Trial,
    config: Config,
    planned: ConfPlan,
    scripts: Scripts,
    submit_with: Callable[[Scripts], DryRunSubmission],
) -> Iterator[Finding]:
    site_result = submit_with(scripts)
    if site_result.failure:
        yield Finding.note(trial.subject, f"not tried: {site_result.failure}")
    elif any(name in trial.clouds for name in site_result.partitions):
        yield Finding.ok(trial.subject, f"it gets {','.join(site_result.partitions)}")
    else:
        filter_scripts = submit_filter.render(
            config,
            planned.pools,
            planned.site,
            denies_below=account_tree.is_hierarchical(planned.version),
        )
        filter_result = submit_with(filter_scripts)
        is_outdated = scripts.get(submit_filter.FILTER) not in (
            None, filter_scripts[submit_filter.FILTER],
        )  # fmt: skip
        yield from _comparison(trial, site_result, filter_result, is_outdated=is_outdated)


def _scripts(directory: Path) -> Scripts:
    """Return the Lua files beside slurm.conf, which job_submit.lua may load.

    Without job_submit.lua there are none.
    """
    try:
        texts = {path.name: path.read_text(errors="replace") for path in directory.glob("*.lua")}
    except OSError:
        return {}
    return texts if submit_filter.PLUGIN_SCRIPT in texts else {}


def _comparison(
    trial: _Trial,
    site_result: DryRunSubmission,
    filter_result: DryRunSubmission,
    *,
    is_outdated: bool,
) -> Iterator[Finding]:
    """Compare the results of the site's script and of the filter alone. ``is_outdated``: the
    installed filter does not match the configuration.
    """
    expected = ",".join(filter_result.partitions)
    if site_result.refusal and not filter_result.refusal and not filter_result.failure:
        yield _site_refusal(trial.subject, site_result.refusal, expected)
    elif any(name in trial.clouds for name in filter_result.partitions) and is_outdated:
        yield Finding.wrong(
            trial.subject,
            f"it gets {','.join(site_result.partitions)} only: the installed"
            f" {submit_filter.FILTER} does not match the configuration",
            expected=f"partitions {expected}, which it gets with the new one",
            advice="slurm-elastic conf install",
        )
    elif any(name in trial.clouds for name in filter_result.partitions):
        yield Finding.wrong(
            trial.subject,
            f"it gets {','.join(site_result.partitions)} only: the site's "
            f"{submit_filter.PLUGIN_SCRIPT} leaves no {trial.noun} to the clouds",
            expected=f"partitions {expected}, which it gets without that script",
            advice="slurm-elastic conf check prints the two lines that go to its end",
        )
    else:
        reason = site_result.refusal or f"it gets {','.join(site_result.partitions)}"
        yield Finding.note(trial.subject, f"no cloud may be listed for it: {reason}")


def _site_refusal(subject: str, refusal: str, expected: str) -> Finding:
    """The site's own script refuses the job, and the filter alone would accept it.

    If it gives a reason, this is a rule of the site, which keeps such jobs from the filter. Without
    a reason the script may be broken.
    """
    expected = f"partitions {expected}, which it gets without the site's own script"
    if refusal != UNSPECIFIED:
        return Finding.note(
            subject, f"{BY_SITE}: {refusal}", expected=expected, advice=OTHER_ACCOUNT
        )
    return Finding.wrong(
        subject,
        f"{BY_SITE}, which gives no reason (slurm.log_user): {refusal}",
        expected=expected,
        advice=f"find the line of {submit_filter.PLUGIN_SCRIPT} that returns slurm.ERROR, then try "
        f"again; {OTHER_ACCOUNT}",
    )


def planned_of(config: Config) -> ConfPlan | None:
    """Return the plan of the installed files; None if another check reports an error in it."""
    try:
        return plan.make(config) if plan.is_installed(config) else None
    except ConfigError:
        return None
