"""Whether any job can burst: the submit filter, allow lists, nodes in service, and a test job."""

from __future__ import annotations

import contextlib
import grp
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from slurm_elastic.base.errors import ConfigError, SlurmError
from slurm_elastic.base.pages import page
from slurm_elastic.config import Config, blocked_clouds
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.pool_rules import rules_of
from slurm_elastic.config.sections.access import Who
from slurm_elastic.model.causes.repairs import NodeIll
from slurm_elastic.model.cluster import Location
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.growth.scaling import holds_back
from slurm_elastic.policies.launch.open_partitions import DEFAULT_PARTITION
from slurm_elastic.policies.launch.verdict import out_of_service
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK, OUR_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import Phase, is_down, is_drained, is_rebooting, phase
from slurm_elastic.slurm.client import confvalues, siteconf
from slurm_elastic.slurm.client.commands.sbatch_test_only import is_scripts_refusal, joined
from slurm_elastic.slurm.client.site import read_site
from slurm_elastic.slurm.conf import plan
from slurm_elastic.slurm.conf.checks.plugins import has_plugin
from slurm_elastic.slurm.hooks import submit_filter
from slurm_elastic.watch.causes import INSTALL
from slurm_elastic.watch.doctor import plain_job as plain_jobs


@runtime_checkable
class Probing(Protocol):
    """A Slurm client that can also ask slurmdbd and sbatch (``slurm.client.doctor_commands``)."""

    def nodes(self) -> Mapping[str, SlurmNode]:
        """All nodes."""
        ...

    def accounts(self) -> frozenset[str]:
        """All accounts in slurmdbd."""
        ...

    def member(self, account: str) -> str:
        """A user of the account; "" if it has none."""
        ...

    def test_only(self, partition: str, *, account: str = "", qos: str = "", user: str = "") -> str:
        """Return where and when a job of one node would start.

        Raises SlurmError with sbatch's own message.
        """
        ...


def filter_called(config: Config) -> Iterator[Finding]:
    """Report whether jobs get our partitions; that needs Slurm's Lua plugin."""
    filter_flaw = submit_filter.trouble(config.slurm.conf)
    site = _site(config)
    if site is None:
        return  # the check of slurm.conf reports it
    if not filter_flaw:
        yield Finding.ok("submit filter", "job_submit.lua calls it")
        return
    has_lua_plugin = has_plugin(config.slurm, site, "job_submit_lua")
    yield Finding(
        subject="submit filter",
        level=FindingLevel.WRONG if has_lua_plugin else FindingLevel.NOTE,
        observed=filter_flaw,
        expected="a filter that adds our partitions to jobs: other jobs do not burst",
        advice=f"slurm-elastic conf check says which lines to put where ({page('submission')})",
        cause="" if plan.is_installed(config) else INSTALL,
    )


def left_on_own_nodes(config: Config, slurm: Slurm) -> Iterator[Finding]:
    """Report waiting jobs whose only partition is the default one, if such jobs get no cloud when
    they name it. The records do not show whether a job named the partition, or fits in no cloud.
    """
    if not config.clouds or any(config.who_of(cloud).partitions for cloud in config.clouds):
        return
    with contextlib.suppress(SlurmError):  # another check reports it
        default = slurm.default_partition()
        waiting = [job for job in slurm.jobs() if "PENDING" in job.states and not job.is_held]
        jobs = [job for job in waiting if default and job.partitions == (default,)]
        if jobs:
            yield Finding.note(
                "waiting jobs",
                f"{len(jobs)} of {len(waiting)} are for partition {default} alone, so they use no"
                " cloud",
                expected="a list of partitions with clouds: a job that names its partition, as"
                " workflow tools do, gets none",
                advice=f"slurm-elastic explain {jobs[0].shell_label} says why; if they name the"
                f" partition: allow: {{partitions: [{DEFAULT_PARTITION}]}}, then slurm-elastic conf"
                " install",
            )


def accounts_held(config: Config) -> Iterator[Finding]:
    """If accounts decide who may spend, report whether users can use only their own accounts."""
    site = _site(config)
    by_account = bool(config.policies.account_budgets) or any(
        config.who_of(cloud).accounts for cloud in config.clouds
    )
    if site is None or not by_account:
        return
    if submit_filter.accounts_enforced(site):
        yield Finding.ok("accounts", "Slurm takes only accounts that a job's user belongs to")
        return
    advice = "set AccountingStorageEnforce=associations in slurm.conf (it needs slurmdbd)"
    is_curable = _has_slurmdbd(config) or bool(config.policies.account_budgets)
    filter_note = (
        "; until then the submit filter keeps jobs off public clouds that name another account "
    )
    filter_note += "than their user's default one"
    yield Finding(
        subject="accounts",
        level=FindingLevel.WRONG if is_curable else FindingLevel.NOTE,
        observed="users may name any account (sbatch -A), so they can evade allow lists and "
        "budgets of accounts",
        expected="AccountingStorageEnforce with associations, limits or safe",
        advice=f"{advice}{filter_note if _has_slurmdbd(config) else ''}",
    )


def accounts_known(config: Config, client: Probing) -> Iterator[Finding]:
    """Report accounts of the allow lists that slurmdbd, if there is one, does not know."""
    listed = {name for cloud in config.clouds for name in config.who_of(cloud).accounts}
    if not listed or not _has_slurmdbd(config):
        return
    subject = "accounts of allow.accounts"
    try:
        known_accounts = client.accounts()
    except SlurmError as error:
        yield Finding.note(
            subject,
            f"not looked up: {error}",
            expected="an answer of slurmdbd (sacctmgr show account)",
        )
        return
    # slurmdbd has names in lower case.
    unknown = sorted(name for name in listed if name.lower() not in known_accounts)
    if unknown:
        yield Finding.wrong(
            subject,
            f"slurmdbd has no account {', '.join(unknown)}",
            expected="accounts that slurmdbd has: no job of an unknown account bursts",
            advice="is it spelled as in sacctmgr show account? Else: sacctmgr add account",
        )
    else:
        yield Finding.ok(subject, f"slurmdbd has {', '.join(sorted(listed))}")


def budgets_passed(config: Config) -> Iterator[Finding]:
    """Report public clouds whose budgets jobs without a time limit may exceed.

    A job that runs when a budget is spent keeps its machine until it ends.
    """
    site = _site(config)
    if site is not None and _is_time(site.partition_defaults.get("maxtime")):
        return  # a partition default, so our partitions have it, too
    blocked = blocked_clouds(config)
    endless = [
        cloud.name
        for cloud in config.clouds
        if cloud.location is Location.PUBLIC and cloud.name not in blocked
        if config.who_of(cloud).max_time is None and _has_budget(config, cloud)
    ]
    if endless:
        yield Finding.note(
            f"budget of {', '.join(endless)}",
            "jobs there have no time limit: when the budget is spent, the machine of a running job "
            "stays until the job ends",
            expected="a time limit, so that the machine can end",
            advice=f"set allow.max_time, then slurm-elastic conf install ({page('decision')})",
        )


def _has_budget(config: Config, cloud: CloudSettings) -> bool:
    budgets = [
        cloud.policies.budget,
        config.policies.budget,
        *config.policies.payer_budgets.values(),
    ]
    return any(budget.per_day is not None or budget.per_month is not None for budget in budgets)


def _is_time(entry: siteconf.Entry | None) -> bool:
    """Return whether the entry is a duration, not UNLIMITED or INFINITE."""
    return entry is not None and confvalues.seconds(entry.value) is not None


def in_service(config: Config, nodes: Mapping[str, SlurmNode]) -> Iterator[Finding]:
    """Report pools of which most nodes take no jobs.

    Nodes that we hold ourselves are not counted: such holds come and go, and ``status`` shows them.
    """
    for pool in plan.pools_of(config):
        pool_nodes = [nodes[name] for name in pool.nodes if name in nodes]
        unheld_nodes = [
            node for node in pool_nodes if not has_mark(node, HOLD_MARK) and not is_rebooting(node)
        ]
        out_count, cause = out_of_service(unheld_nodes, config.slurm.drain_terms)
        # More than half: a few drained nodes are daily life.
        if 2 * out_count > len(pool_nodes):
            finding = cause.finding if isinstance(cause, NodeIll) else str(cause)
            remedy = cause.remedy if isinstance(cause, NodeIll) else ""
            yield Finding.wrong(
                f"nodes of pool {pool.name}",
                f"{out_count} of {len(pool_nodes)} take no jobs: {finding}",
                expected="most of them in service",
                advice=remedy or "sinfo -R says who drained them, and when",
            )


def probes(config: Config, client: Probing, named_account: str = "") -> Iterator[Finding]:
    """Yield for each cloud sbatch's answer to a job of one node by an allowed user.

    ``named_account``: the account of these jobs in clouds that allow it.
    """
    blocked = blocked_clouds(config)
    nodes = client.nodes()
    for cloud in config.clouds:
        if cloud.name not in blocked and _waits_for_growth(config, cloud, nodes):
            # Slurm takes a held node for drained, so sbatch would call the job impossible.
            yield Finding.ok(
                f"a job in partition {cloud.partition_name}",
                "not tried: its growth policies start a node once a job waits",
            )
        elif cloud.name not in blocked and (closed := _closed_nodes(config, cloud, nodes)):
            # sbatch would call such a job impossible, but it starts once the cause has passed.
            yield Finding.note(
                f"a job in partition {cloud.partition_name}",
                f"not tried: no node takes a job now ({closed})",
                advice="slurm-elastic status has the causes",
            )
        elif cloud.name not in blocked:
            allowed = config.who_of(cloud)
            account, user = _allowed_user(allowed, client, config, named_account)
            may_be_refused = allowed.anybody and os.geteuid() != 0
            yield _probe(
                config,
                client,
                cloud.partition_name,
                account,
                user,
                (*allowed.qos, "")[0],
                may_be_refused=may_be_refused,
            )


def _waits_for_growth(config: Config, cloud: CloudSettings, nodes: Mapping[str, SlurmNode]) -> bool:
    """Return whether growth policies keep all nodes of the cloud from Slurm until a job waits."""
    pools = [pool for pool in plan.pools_of(config) if pool.cloud == cloud.name]
    rules = {pool.name: rules_of(config, pool) for pool in config.pools}
    return all(
        holds_back(rules[pool.name].growth)
        and all(has_mark(nodes[n], HOLD_MARK) for n in pool.nodes if n in nodes)
        for pool in pools
    )


def _closed_nodes(config: Config, cloud: CloudSettings, nodes: Mapping[str, SlurmNode]) -> str:
    """Return how the nodes of the cloud are kept from jobs, if all of them are; else "". Each such
    state is reported where it belongs: a hold, an order, a drain, a down node.
    """
    names = [n for pool in plan.pools_of(config) if pool.cloud == cloud.name for n in pool.nodes]
    states = Counter(_closed_state(nodes[name]) for name in names if name in nodes)
    if not states or "" in states:
        return ""
    return ", ".join(f"{count} {state}" for state, count in states.most_common())


def _closed_state(node: SlurmNode) -> str:
    if is_down(node):
        return "down"
    if is_drained(node):
        return "held" if has_mark(node, OUR_MARK) else "drained"
    return "powering down" if phase(node) is Phase.POWERING_DOWN else ""


def plain_job(config: Config, client: Probing, named_account: str = "") -> Iterator[Finding]:
    """Yield which partitions a plain job gets, and a job of each other partition that may use a
    cloud. Its user may use the first of its clouds.
    """
    planned = plain_jobs.planned_of(config)
    if planned is not None:
        yield from plain_jobs.examine(
            config,
            planned,
            lambda cloud: _allowed_user(config.who_of(cloud), client, config, named_account),
        )


def _probe(
    config: Config,
    client: Probing,
    partition: str,
    account: str,
    user: str,
    qos: str,
    *,
    may_be_refused: bool,
) -> Finding:
    """Return sbatch's answer to a job of one node in ``partition``, as a finding.

    ``may_be_refused``: the user who runs this check may not be allowed there, so a refusal is only
    a note. So is a refusal by the site's own script, which is a rule of the site.
    """
    submitter = f" as {user}" if user else ""
    submitter += f" with account {account}" if account else ""
    subject = f"sbatch --test-only in partition {partition}{submitter}"
    expected = "a time at which a job of one node would start"
    try:
        answer = client.test_only(partition, account=account, qos=qos, user=user)
    except SlurmError as error:
        refusal = joined(error.stderr)
        # First, because slurm.ERROR of a script looks like no answer of slurmctld.
        if is_scripts_refusal(error) and _has_own_script(config):
            return Finding.note(
                subject,
                f"{plain_jobs.BY_SITE}: {refusal}",
                expected=expected,
                advice=plain_jobs.OTHER_ACCOUNT,
            )
        if error.unanswered:
            return Finding.note(subject, str(error), expected=expected)
        return Finding(
            subject=subject,
            level=FindingLevel.NOTE if may_be_refused else FindingLevel.WRONG,
            observed=refusal,
            expected=expected,
            advice="run this as root, which can ask as a user who is allowed there"
            if may_be_refused
            else "submit such a job: slurm-elastic explain JOBID",
        )
    return Finding.ok(subject, answer or "it would start")


def _has_own_script(config: Config) -> bool:
    try:
        return plan.foreign_lua(Path(config.slurm.conf).parent) is not None
    except ConfigError:
        return False  # this user may not read it


def _allowed_user(
    allowed: Who, client: Probing, config: Config, named_account: str
) -> tuple[str, str]:
    """Return an allowed account and user; no user if we are not root, since only root can ask as
    another.
    """
    account = (*allowed.accounts, named_account)[0]
    if named_account in allowed.accounts:
        account = named_account
    # sbatch --uid is for root alone.
    if os.geteuid() != 0:
        return account, ""
    for name in allowed.groups:
        try:
            members = grp.getgrnam(name).gr_mem
        except KeyError:
            continue
        if members:
            return account, members[0]
    try:
        return account, client.member(account) if account and _has_slurmdbd(config) else ""
    except SlurmError:
        return account, ""


def _has_slurmdbd(config: Config) -> bool:
    site = _site(config)
    kind = site.option("AccountingStorageType") if site else None
    return kind is not None and kind.value.lower().endswith("slurmdbd")


def _site(config: Config) -> siteconf.SiteConf | None:
    try:
        return read_site(config.slurm) if Path(config.slurm.conf).exists() else None
    except ConfigError:
        return None
