"""``slurm-elastic explain``: the recorded decisions about a node, job, pool or cloud."""

from __future__ import annotations

import argparse
import contextlib
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs
from rich.console import Console

from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.base.local_time import clock
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.base.units import brief, counted
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.jobs import why_not
from slurm_elastic.cli.jobs.explain_text import LINES, Explanation, render, render_short
from slurm_elastic.cli.machine_readable import write_json
from slurm_elastic.cli.operate.cloud_table import published_rows
from slurm_elastic.cli.operate.console import plain
from slurm_elastic.cli.operate.looking import config_to_look
from slurm_elastic.cli.operate.status import gather, kept_of, with_kept
from slurm_elastic.cli.orders import forgotten_jobs
from slurm_elastic.cli.orders.subjects import MAX_EXPLAINED_NODES, is_of_site, subjects
from slurm_elastic.cli.reports.shortened import words
from slurm_elastic.config import Config, PoolSettings, domain_pools
from slurm_elastic.config.document import shown
from slurm_elastic.config.pool_rules import rules_of
from slurm_elastic.model.causes.pool_failures import BootsCounted, BootsFailed, ended_by_others
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.finding import try_pool
from slurm_elastic.model.machine_states import columns_of
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.money.account_budgets import barring
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.policies.waits.wait import Wait
from slurm_elastic.policies.waits.wait_note import boot_note
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.audit_trail import jobs_of, nodes_of
from slurm_elastic.state.heartbeat import Mark, alive, process_exists, read_mark, trouble_text
from slurm_elastic.watch.door.client import chain_of, own_jobs_of
from slurm_elastic.watch.door.questions import Chain, ChainAsk, OwnJobsAsk
from slurm_elastic.watch.view import StatusView, status_view
from slurm_elastic.watch.view.attention import machines, sentence
from slurm_elastic.watch.view.kept import NODE, kept_views
from slurm_elastic.watch.view.rows import Facts, KeptView

COST_TIMEOUT_S = 8.0
"""slurm-elasticd computes costs and starts one after the other. If many users ask for them, an
explanation must not wait for its last lines.
"""
_JOB_NUMBER = re.compile(r"[0-9]{1,10}")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "explain",
        description="Print every decision about a node or a job in the order of time, with its "
        "reason and the rejected offers. A job's decisions include the decisions about its "
        "nodes. For a waiting job, the first lines say for each pool why it gets no machine "
        "there. The last lines say what the job has cost and will cost at most, and when it is "
        "expected to start. Repeated decisions are shown once, with the latest time; "
        f"there are at most {LINES} lines.",
        epilog=examples("slurm-elastic explain 42", "slurm-elastic explain pub[1-3] --all"),
    )
    parser.add_argument(
        "subject",
        metavar="NODE|JOB|POOL|CLOUD",
        help=f"a node or a hostlist (at most {MAX_EXPLAINED_NODES} nodes); a job as Slurm's "
        "commands write it: 18, 18_3 (a task of an array), '18_[3-5]' (waiting tasks), 18+1 (a "
        "part of a heterogeneous job), 18.batch (a step), or a job's name, for the newest job of "
        "that name; a pool; a cloud or its partition, for all of its pools",
    )
    parser.add_argument("--all", action="store_true", help="print every decision with all details")
    parser.add_argument(
        "--json", action="store_true", help="print every decision as JSON, one document per subject"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Explain the subject. SlurmElasticError (exit 1) if nothing is known about it."""
    config = config_to_look(args)
    return show(config, PromptCli(config.slurm), args.subject, as_json=args.json, whole=args.all)


def show(
    config: Config,
    slurm: Slurm,
    subject: str,
    *,
    as_json: bool = False,
    whole: bool = False,
    console: Console | None = None,
) -> int:
    """Print the explanation of ``subject``. SlurmElasticError if nothing is known about it."""
    stale = config.timings.daemon_timeout
    mark, now = read_mark(config.state), time.time()
    end_only_reason = trouble_text(config.state, mark, now, stale)
    console = console or plain()
    if not as_json:
        # Print this before the ledger is read: if that fails, this is all that we can print.
        for trouble in filter(None, (sentence(end_only_reason), silent(mark, now, stale))):
            console.print(words(trouble, "bold red"))
    for single_subject in subjects(config, slurm, subject):
        _show_one(
            _with_own_job(config, slurm, explain(config, slurm, single_subject)),
            end_only_reason,
            console,
            as_json=as_json,
            whole=whole,
        )
    return 0


def explanations(config: Config, slurm: Slurm, subject: str) -> Iterator[Explanation]:
    """The documents that ``--json`` prints. SlurmElasticError if nothing is known."""
    end_only_reason = trouble_text(
        config.state, read_mark(config.state), time.time(), config.timings.daemon_timeout
    )
    for single_subject in subjects(config, slurm, subject):
        explanation = _with_own_job(config, slurm, explain(config, slurm, single_subject))
        yield structs.replace(explanation, end_only=end_only_reason or explanation.end_only)


def _with_own_job(config: Config, slurm: Slurm, explanation: Explanation) -> Explanation:
    """Add the row that ``mine`` shows of the job, if this user may see it."""
    if explanation.about != "job":
        return explanation
    now, job = time.time(), int(explanation.subject)
    with contextlib.suppress(SlurmElasticError):  # the decisions are worth more than the cost
        ask = OwnJobsAsk(since=0.0, job=job)
        document = own_jobs_of(config, slurm, ask, now, COST_TIMEOUT_S)
        row = next((row for row in document.jobs if row.id == job), None)
        return structs.replace(explanation, job=row)
    return explanation


def silent(mark: Mark | None, now: float, stale: float) -> str:
    """The warning that slurm-elasticd does not run; "" if it runs or never left a sign of life."""
    if mark is None or alive(mark.beat, process_exists(mark.pid), now, stale):
        return ""
    ago = brief(max(now - mark.at, 0.0))
    last_sign = f"last sign of life {ago} ago"
    do = service_remedies.start("slurm-elasticd")
    return f"slurm-elasticd is NOT RUNNING ({last_sign}): nothing is decided or bought; do: {do}"


def document(explanation: Explanation) -> dict[str, Any]:
    """The document of ``explain --json``: each cause as data, and its sentence as ``reason``."""
    fields: dict[str, Any] = msgspec.to_builtins(explanation)
    for decision, row in zip(explanation.decisions, fields["decisions"], strict=True):
        row["reason"] = str(decision.reason)
    for machine, row in zip(explanation.machines, fields["machines"], strict=True):
        # Programs read these names since before there were states.
        row |= msgspec.to_builtins(columns_of(machine.life)._asdict())
        del row["life"]
        row["end_reason"] = None if machine.cause_text is None else str(machine.cause_text)
    return fields


def _show_one(
    explanation: Explanation, end_only_reason: str, console: Console, *, as_json: bool, whole: bool
) -> None:
    # Only the daemon knew the reason: ``show`` could not print it before it read the ledger.
    if explanation.end_only and not end_only_reason and not as_json:
        console.print(words(sentence(explanation.end_only), "bold red"))
    if as_json:
        write_json(
            document(structs.replace(explanation, end_only=end_only_reason or explanation.end_only))
        )
    else:
        (render if whole else render_short)(explanation, console)


def explain(config: Config, slurm: Slurm, subject: str) -> Explanation:
    """Read the decisions about ``subject`` and its state in Slurm.

    Raises SlurmElasticError if nothing is known about it.
    """
    pool_of = {node: p for p in domain_pools(config, expand) for node in p.nodes}
    # A node may be called "17": names of nodes come before numbers of jobs.
    number = _job_number(subject) if subject not in pool_of else None
    if number is not None:
        return _with_trial_advice(_explain_job(config, slurm, number), pool_of)
    if subject not in pool_of and any(subject == pool.name for pool in config.pools):
        return _explain_pool(config, slurm, subject)
    explanation = _explain_node(config, slurm, subject, is_of_pool=subject in pool_of)
    return _with_trial_advice(explanation, pool_of)


def _with_trial_advice(explanation: Explanation, pool_of: Mapping[str, Pool]) -> Explanation:
    """Add the advice to try the pool, if the last machine that was started did not register."""
    boots = [
        decision
        for decision in explanation.decisions
        if decision.kind in ("launched", "boot-failed")
    ]
    if not boots or boots[-1].kind != "boot-failed":
        return explanation
    pools = [pool_of[node].name for node in nodes_of(boots[-1]) if node in pool_of]
    if not pools:
        return explanation
    cause = boots[-1].cause
    failure = cause.failure if isinstance(cause, BootsCounted) else BootsFailed()
    text = _about_last_machine(pools[0], failure)
    return structs.replace(explanation, attention=(*explanation.attention, text))


def _about_last_machine(pool: str, failure: BootsFailed) -> str:
    """The sentence about the pool's last machine, with the next step."""
    if not failure.is_after_registration:
        return f"The last machine of pool {pool} did not register; do: {try_pool(pool)}"
    # It has registered, and may have run jobs: a trial would show nothing new.
    if failure.node_reason:
        reason = failure.reason_with_remedy
        return f"Slurm took the last machine of pool {pool} out of service: {reason}"
    remedy = f"; do: {failure.remedy}" if failure.remedy else ""
    return f"The last machine of pool {pool} {ended_by_others(1)}{remedy}"


def _explain_job(config: Config, slurm: Slurm, number: int) -> Explanation:
    jobs, trouble = _jobs(slurm)
    job = next((candidate for candidate in jobs if candidate.id == number), None)
    is_waiting = job is not None and "PENDING" in job.states
    ask = ChainAsk(
        about="job",
        name=str(number),
        nodes=job.nodes if job else (),
        # A node has many machines over time: these times tell on which of them the job ran.
        begin=job.start if job else 0.0,
        end=job.end if job and job.has_ended else None,
    )
    now = time.time()
    chain = chain_of(config, ask, now)
    if job is None and not chain.decisions and not chain.machines:
        where = trouble or "Slurm does not have it in its queue"
        if not trouble and (row := forgotten_jobs.own_job(config, slurm, str(number))):
            return _explanation(str(number), "job", forgotten_jobs.sentence(row), chain)
        raise SlurmElasticError(
            f"nothing is known about job {number}: no decision in the ledger names it, and {where}"
        )
    payers = chain.obstacles.payers
    overdrawn = barring(payers, job.account, job.user) if job and is_waiting else None
    no_money = f"; {overdrawn.reason}" if overdrawn else ""
    own_nodes = {node for pool in domain_pools(config, expand) for node in pool.nodes}
    label = chain.labels.get(number, str(number))
    state = trouble or _job_now(label, job, own_nodes, chain.machines) + no_money
    explanation = _explanation(str(number), "job", state, chain, jobs)
    other_tasks = _other_tasks(number, label, jobs)
    if job is None or not is_waiting:
        return structs.replace(explanation, attention=other_tasks)
    keeps = structs.replace(kept_of(slurm, now), jobs=jobs)
    waits = why_not.waits_now(config, job, chain, keeps)
    return structs.replace(
        explanation,
        attention=(*_advice_on_wait(job, waits.of(job), now), *other_tasks),
        verdicts=waits.of_all_pools(job),
        clouds=published_rows(config, job, now),
    )


def _other_tasks(number: int, label: str, jobs: Sequence[SlurmJob]) -> tuple[str, ...]:
    """The sentence for an array's number. The job of this number has only the waiting tasks, or
    the task that started last. The other tasks have machines and costs of their own.
    """
    others = [job for job in jobs if job.array == number != job.id and job.nodes]
    if not others:
        return ()
    first = min(others, key=lambda job: job.id)
    text = f"{counted(len(others), 'other task')} of this array had machines and costs of their own"
    return (f"This is job {label} alone. {text}; do: slurm-elastic explain {first.label}",)


def _advice_on_wait(job: SlurmJob, wait: Wait, now: float) -> tuple[str, ...]:
    """The sentence for a pending job that does not start by itself, with the command that helps. If
    the job needs no help: when the first of its sold-out clouds is asked again.
    """
    if wait.is_stuck:
        text = f"Job {job.label} {wait.reason}"
        return (f"{text}; do: {wait.command}" if wait.command else text,)
    if wait.retry_at is None:
        return ()
    time_left = brief(max(wait.retry_at - now, 0.0))
    text = "You need to do nothing: slurm-elastic asks cloud"
    return (f"{text} {wait.retry_cloud} again at {clock(wait.retry_at)} (in {time_left})",)


def _node_advice(config: Config, facts: Facts) -> tuple[str, ...]:
    """The sentences for a node that takes no jobs or never ends, with the command that helps."""
    views = kept_views(config, facts)
    return tuple(_advice(finding) for finding in views if finding.kind != "job")


def _advice(finding: KeptView) -> str:
    return f"{finding.text}; do: {finding.do}" if finding.do else finding.text


def _explain_pool(config: Config, slurm: Slurm, name: str) -> Explanation:
    pool = next(pool for pool in config.pools if pool.name == name)
    now = time.time()
    facts = gather(config, slurm, now)
    view = status_view(config, facts)
    pools = {entry.name for entry in view.pools}
    pool_machines = [
        entry  # also machines of the cloud whose pool has left the configuration
        for entry in view.instances
        if entry.pool == name or (entry.cloud == pool.cloud and entry.pool not in pools)
    ]
    calm = {entry.id: entry.calm for entry in pool_machines}
    chain = chain_of(config, ChainAsk(about="pool", name=name), now)
    last_alarming = sorted(chain.machines, key=lambda entry: not calm.get(entry.instance.id, True))
    explanation = _explanation(name, "pool", _pool_now(config, pool, view, chain), chain)
    return structs.replace(
        explanation,
        machines=tuple(last_alarming),
        attention=(
            *(entry.text for entry in machines(pool_machines)),
            *_persons_nodes(config, facts, expand(pool.nodes)),
        ),
    )


def _persons_nodes(config: Config, facts: Facts, names: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each group of nodes that a person must return to service. Until then the
    pool is smaller.
    """
    # The rows of machines already report the nodes that slurm-elasticd itself returns.
    known = facts.nodes or {}
    nodes = {name: known[name] for name in names if name in known}
    for finding in kept_views(config, structs.replace(facts, nodes=nodes)):
        if finding.kind == NODE:
            yield _advice(finding)


def _pool_now(config: Config, pool: PoolSettings, view: StatusView, chain: Chain) -> str:
    """The pool's nodes by state and its obstacles, then the policies by which it grows."""
    shown = next(pool_view for pool_view in view.pools if pool_view.name == pool.name)
    states = ", ".join(f"{count} {state}" for state, count in shown.states.items())
    if view.slurm_error:
        states = f"Slurm does not answer: {view.slurm_error}"
    bars = [bar for bar in chain.obstacles.bars if bar.pool == pool.name]
    barred = [f"no machine starts: {reason}" for bar in bars if (reason := bar.reason_for(1))]
    rules = rules_of(config, pool)
    release = "by Slurm's SuspendTime" if rules.release is None else text_of(rules.release)
    policies = f"growth {text_of(rules.growth)}, release {release}"
    details = "; ".join((states or "nodes not known", *barred, policies))
    return f"pool {pool.name} of cloud {pool.cloud}: {details}"


def _explain_node(config: Config, slurm: Slurm, name: str, *, is_of_pool: bool) -> Explanation:
    # An argument that is not valid UTF-8 cannot be sent to the daemon, and names no node.
    ask = ChainAsk(about="node", name=name)
    chain = chain_of(config, ask, time.time()) if name.isprintable() else Chain()
    if not is_of_pool and not chain.decisions:
        if not (text := is_of_site(slurm, name) if name.isprintable() else ""):
            raise SlurmElasticError(
                f"nothing is known about {shown(name)}: it is neither a node, a partition, a pool "
                "or a cloud, nor the number (18, 18_3, 18+1, 18.batch) or the name of a job"
            )
        return _explanation(name, "site", text, chain)
    jobs = _jobs(slurm)[0] if any(map(jobs_of, chain.decisions)) else ()
    try:
        # Read once for both: at a large site this is most of the time.
        nodes, trouble = slurm.nodes([name]), ""
    except SlurmError as error:
        nodes, trouble = {}, f"Slurm does not answer: {error}"
    explanation = _explanation(name, "node", trouble or _node_now(nodes, name), chain, jobs)
    facts = with_kept(Facts(now=time.time(), nodes=nodes), slurm)
    return structs.replace(explanation, attention=_node_advice(config, facts))


def _explanation(
    subject: str, about: str, now: str, chain: Chain, jobs: Iterable[SlurmJob] = ()
) -> Explanation:
    """Make the explanation. ``jobs``: Slurm's jobs, for the names of array tasks. The records have
    the names of tasks that ran on our machines.
    """
    labels = {job.id: job.label for job in jobs if job.task is not None}
    named = {number for decision in chain.decisions for number in jobs_of(decision)}
    return Explanation(
        subject=subject,
        about=about,
        now=now,
        machines=chain.machines,
        decisions=chain.decisions,
        private=chain.private,
        end_only=chain.obstacles.end_only,
        labels={k: label for k, label in {**chain.labels, **labels}.items() if k in named},
    )


def _job_number(subject: str) -> int | None:
    """The number of a job (``17`` or ``job:17``), else None. Slurm's job numbers have 32 bits."""
    digits = subject.removeprefix("job:")
    return int(digits) if _JOB_NUMBER.fullmatch(digits) else None


def _jobs(slurm: Slurm) -> tuple[Sequence[SlurmJob], str]:
    """All jobs, and "". If Slurm does not answer: no jobs, and the reason."""
    try:
        return slurm.jobs(ended=True), ""
    except SlurmError as error:
        return (), f"Slurm does not answer: {error}"


def _job_now(
    label: str, job: SlurmJob | None, own_nodes: Collection[str], machines: Iterable[Machine]
) -> str:
    if job is None:
        return f"job {label} is no longer in Slurm's queue"
    where = f" on {compress(job.nodes)}" if job.nodes else ""
    if job.nodes and not job.has_ended and set(job.nodes).isdisjoint(own_nodes):
        where += ", nodes of the site itself"
    if "CONFIGURING" in job.states and (note := boot_note(job.nodes, machines)):
        where += f"; {note}"
    reason = "" if job.wait_reason.is_unseen else f" ({job.reason})"
    owner = f" of {job.user}" if job.user else ""
    return f"job {job.label}{owner} is {' '.join(sorted(job.states))}{where}{reason}"


def _node_now(nodes: Mapping[str, SlurmNode], name: str) -> str:
    node = nodes.get(name)
    if node is None:
        return f"Slurm does not list node {name}"
    reason = f": {node.reason}" if node.reason else ""
    return f"node {name} is {' '.join(sorted(node.states))}{reason}"
