"""``slurm-elastic explain``: why things happened to a node, job, pool or cloud, by the ledger."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs
from rich.console import Console

from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.base.local_time import clock
from slurm_elastic.base.units import brief
from slurm_elastic.cli import why_not
from slurm_elastic.cli.console import plain
from slurm_elastic.cli.explain_text import LINES, Explanation, render, render_short
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.machine_readable import write_json
from slurm_elastic.cli.shortened import words
from slurm_elastic.cli.status import gather, kept_of
from slurm_elastic.cli.subjects import MOST, is_of_site, subjects
from slurm_elastic.config import Config, PoolSettings, domain_pools
from slurm_elastic.config.configfile import load
from slurm_elastic.config.document import shown
from slurm_elastic.config.pool_rules import rules_of
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.finding import try_pool
from slurm_elastic.model.machine_states import columns_of
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.model.slurm_words.rows import Fate
from slurm_elastic.policies.launch.verdict import Verdict
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.audit_trail import nodes_of
from slurm_elastic.state.heartbeat import Mark, alive, process_exists, read_mark, told
from slurm_elastic.watch.door.client import chain_of
from slurm_elastic.watch.door.questions import Chain, ChainAsk
from slurm_elastic.watch.view import StatusView, status_view
from slurm_elastic.watch.view.attention import START, machines, sentence
from slurm_elastic.watch.view.kept import Waits, kept_views

_JOB_NUMBER = re.compile(r"[0-9]{1,10}")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "explain",
        description="Print every decision about a node or a job in the order of time, with its "
        "reason, and what was rejected and why. A job's chain includes the chain of its nodes; of "
        "a job that waits, the reason why it gets no machine of each pool is told first. A "
        "decision that was taken again and again for one cause is told once, by its last time; "
        f"there are at most {LINES} lines.",
        epilog=examples("slurm-elastic explain 42", "slurm-elastic explain pub[1-3] --all"),
    )
    parser.add_argument(
        "subject",
        metavar="NODE|JOB|POOL|CLOUD",
        help=f"a node or a hostlist (at most {MOST} nodes); a job as Slurm's commands write it: "
        "18, 18_3 (a task of an array), 18+1 (a part of a heterogeneous job), 18.batch (a step), "
        "or a job's name, for the newest job so called; a pool; a cloud or its partition, for all "
        "of its pools",
    )
    parser.add_argument(
        "--all", action="store_true", help="print every decision whole, however many there are"
    )
    parser.add_argument(
        "--json", action="store_true", help="print every decision as JSON, a document a subject"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Explain one node or job; 1 when nothing is known about it."""
    config = load(Path(args.config))
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
    """Print the explanation of ``subject``. Raises SlurmElasticError where nothing is known."""
    stale = config.timings.heartbeat_stale
    mark, now = read_mark(config.state), time.time()
    why = told(config.state, mark, now, stale)
    console = console or plain()
    if not as_json:
        # Before anything is read: without a ledger there may be nothing else to print.
        for trouble in filter(None, (sentence(why), silent(mark, now, stale))):
            console.print(words(trouble, "bold red"))
    for one in subjects(config, slurm, subject):
        _show_one(explain(config, slurm, one), why, console, as_json=as_json, whole=whole)
    return 0


def explanations(config: Config, slurm: Slurm, subject: str) -> Iterator[Explanation]:
    """The documents that ``--json`` prints. SlurmElasticError where nothing is known."""
    why = told(config.state, read_mark(config.state), time.time(), config.timings.heartbeat_stale)
    for one in subjects(config, slurm, subject):
        found = explain(config, slurm, one)
        yield structs.replace(found, end_only=why or found.end_only)


def silent(mark: Mark | None, now: float, stale: float) -> str:
    """That the daemon does not run, so nothing is done; "" where it does, or nobody can tell."""
    if mark is None or alive(mark.beat, process_exists(mark.pid), now, stale):
        return ""
    ago = brief(max(now - mark.at, 0.0))
    seen = f"last sign of life {ago} ago"
    return f"slurm-elasticd is NOT RUNNING ({seen}): nothing is decided or bought; do: {START}"


def document(explanation: Explanation) -> dict[str, Any]:
    """``explain --json``: each cause as data, and beside it as a sentence."""
    found: dict[str, Any] = msgspec.to_builtins(explanation)
    for decision, row in zip(explanation.decisions, found["decisions"], strict=True):
        row["reason"] = decision.reason
    for machine, row in zip(explanation.machines, found["machines"], strict=True):
        # Programs read these names since before there were states.
        row |= msgspec.to_builtins(columns_of(machine.life)._asdict())
        del row["life"]
        row["why"] = machine.why or None
    return found


def _show_one(
    explanation: Explanation, why: str, console: Console, *, as_json: bool, whole: bool
) -> None:
    if explanation.end_only and not why and not as_json:  # told by the daemon
        console.print(words(sentence(explanation.end_only), "bold red"))
    if as_json:
        write_json(document(structs.replace(explanation, end_only=why or explanation.end_only)))
    else:
        (render if whole else render_short)(explanation, console)


def explain(config: Config, slurm: Slurm, subject: str) -> Explanation:
    """Read the chain of ``subject`` and its state by Slurm."""
    pool_of = {node: p for p in domain_pools(config, expand) for node in p.nodes}
    number = _job_number(subject) if subject not in pool_of else None
    if number is not None:
        return _with_remedy(_explain_job(config, slurm, number), pool_of)
    if subject not in pool_of and any(subject == pool.name for pool in config.pools):
        return _explain_pool(config, slurm, subject)
    found = _explain_node(config, slurm, subject, known=subject in pool_of)
    return _with_remedy(found, pool_of)


def _with_remedy(found: Explanation, pool_of: Mapping[str, Pool]) -> Explanation:
    """With what to do if the last machine that was started did not register."""
    boots = [one for one in found.decisions if one.kind in ("launched", "boot-failed")]
    if not boots or boots[-1].kind != "boot-failed":
        return found
    pools = [pool_of[node].name for node in nodes_of(boots[-1]) if node in pool_of]
    if not pools:
        return found
    text = f"The last machine of pool {pools[0]} did not register; do: {try_pool(pools[0])}"
    return structs.replace(found, attention=(*found.attention, text))


def _explain_job(config: Config, slurm: Slurm, number: int) -> Explanation:
    jobs, trouble = _jobs(slurm)
    job = next((one for one in jobs if one.id == number), None)
    waits = job is not None and "PENDING" in job.states
    ask = ChainAsk(
        about="job",
        name=str(number),
        nodes=job.nodes if job else (),
        begin=job.start if job else 0.0,
        end=job.end if job and job.has_ended else None,
        account=job.account if job and waits else "",
        user=job.user if job and waits else "",
        wants=job.node_count if job and waits else 0,
    )
    now = time.time()
    chain = chain_of(config, ask, now)
    if job is None and not chain.decisions:
        where = trouble or "Slurm does not have it in its queue"
        raise SlurmElasticError(
            f"nothing is known about job {number}: no decision in the ledger names it, and {where}"
        )
    no_money = f"; {chain.barred}" if chain.barred else ""
    ours = {node for pool in domain_pools(config, expand) for node in pool.nodes}
    told = trouble or _job_now(number, job, ours) + no_money
    found = _explanation(str(number), "job", told, chain)
    if job is None or not waits:
        return found
    keeps = structs.replace(kept_of(slurm, now), jobs=jobs)
    verdicts = why_not.judge(config, job, chain, keeps)
    return structs.replace(
        found,
        attention=_of_waiting(config, job, now) or _retry(chain, verdicts, now),
        verdicts=verdicts,
    )


def _retry(chain: Chain, verdicts: Sequence[Verdict], now: float) -> tuple[str, ...]:
    """The time at which sold-out clouds are asked again, for a job that no person has to help."""
    times = {
        one.cloud: chain.retry_at[one.pool]
        for one in verdicts
        if one.predicate == "health" and one.pool in chain.retry_at
    }
    if not times:
        return ()
    cloud = min(times, key=lambda name: times[name])
    at = times[cloud]
    wait = brief(max(at - now, 0.0))
    text = "You need to do nothing: slurm-elastic asks cloud"
    return (f"{text} {cloud} again at {clock(at)} (in {wait})",)


def _of_waiting(config: Config, job: SlurmJob, now: float) -> tuple[str, ...]:
    """The sentence for a pending job that does not start by itself, with the command that helps."""
    wait = Waits(config, now).of(job)
    if wait.fate is Fate.STARTS:
        return ()
    does = "can never start" if wait.fate is Fate.NEVER else "is held"
    text = f"Job {job.label} {does}: {wait.text}"
    return (f"{text}; do: {wait.command}" if wait.command else text,)


def _of_node(config: Config, slurm: Slurm, name: str, now: float) -> tuple[str, ...]:
    """The sentences for a node that takes no jobs or never ends, with the command that helps."""
    views = kept_views(config, kept_of(slurm, now, names=[name]))
    return tuple(
        f"{one.text}; do: {one.do}" if one.do else one.text for one in views if one.kind != "job"
    )


def _explain_pool(config: Config, slurm: Slurm, name: str) -> Explanation:
    pool = next(pool for pool in config.pools if pool.name == name)
    now = time.time()
    view = status_view(config, gather(config, slurm, now))
    pools = {one.name for one in view.pools}
    mine = [
        one  # also such as no pool has any more
        for one in view.instances
        if one.pool == name or (one.cloud == pool.cloud and one.pool not in pools)
    ]
    calm = {one.id: one.calm for one in mine}
    chain = chain_of(config, ChainAsk(about="pool", name=name), now)
    last_alarming = sorted(chain.machines, key=lambda one: not calm.get(one.instance.id, True))
    found = _explanation(name, "pool", _pool_now(config, pool, view, chain), chain)
    return structs.replace(
        found,
        machines=tuple(last_alarming),
        attention=tuple(one.text for one in machines(mine)),
    )


def _pool_now(config: Config, pool: PoolSettings, view: StatusView, chain: Chain) -> str:
    """What is so of it now, then by which policies it grows and shrinks."""
    shown = next(one for one in view.pools if one.name == pool.name)
    states = ", ".join(f"{count} {state}" for state, count in shown.states.items())
    if view.slurm_error:
        states = f"Slurm does not answer: {view.slurm_error}"
    barred = [f"no machine starts: {bar.reason}" for bar in chain.bars]
    own = rules_of(config, pool)
    release = "by Slurm's SuspendTime" if own.release is None else text_of(own.release)
    policies = f"growth {text_of(own.growth)}, release {release}"
    told = "; ".join((states or "nodes not known", *barred, policies))
    return f"pool {pool.name} of cloud {pool.cloud}: {told}"


def _explain_node(config: Config, slurm: Slurm, name: str, *, known: bool) -> Explanation:
    # A word that was no UTF-8 on the command line cannot be asked for, and names nothing.
    ask = ChainAsk(about="node", name=name)
    chain = chain_of(config, ask, time.time()) if name.isprintable() else Chain()
    if not known and not chain.decisions:
        if not (text := is_of_site(slurm, name) if name.isprintable() else ""):
            raise SlurmElasticError(
                f"nothing is known about {shown(name)}: it is neither a node, a partition, a pool "
                "or a cloud, nor the number (18, 18_3, 18+1, 18.batch) or the name of a job"
            )
        return _explanation(name, "site", text, chain)
    found = _explanation(name, "node", _node_now(slurm, name), chain)
    return structs.replace(found, attention=_of_node(config, slurm, name, time.time()))


def _explanation(subject: str, about: str, now: str, chain: Chain) -> Explanation:
    return Explanation(
        subject=subject,
        about=about,
        now=now,
        machines=chain.machines,
        decisions=chain.decisions,
        private=chain.private,
        end_only=chain.end_only,
    )


def _job_number(subject: str) -> int | None:
    """None for what is none; Slurm's have 32 bits."""
    digits = subject.removeprefix("job:")
    return int(digits) if _JOB_NUMBER.fullmatch(digits) else None


def _jobs(slurm: Slurm) -> tuple[Sequence[SlurmJob], str]:
    """All jobs, and what is wrong where Slurm could not be asked."""
    try:
        return slurm.jobs(ended=True), ""
    except SlurmError as error:
        return (), f"Slurm does not answer: {error}"


def _job_now(number: int, job: SlurmJob | None, ours: Collection[str]) -> str:
    if job is None:
        return f"job {number} is no longer in Slurm's queue"
    where = f" on {compress(job.nodes)}" if job.nodes else ""
    if job.nodes and not job.has_ended and set(job.nodes).isdisjoint(ours):
        where += ", nodes of the site itself"
    why = "" if job.wait_reason.is_unseen else f" ({job.reason})"
    of = f" of {job.user}" if job.user else ""
    return f"job {job.label}{of} is {' '.join(sorted(job.states))}{where}{why}"


def _node_now(slurm: Slurm, name: str) -> str:
    try:
        node: SlurmNode | None = slurm.nodes([name]).get(name)
    except SlurmError as error:
        return f"Slurm does not answer: {error}"
    if node is None:
        return f"Slurm does not list node {name}"
    why = f": {node.reason}" if node.reason else ""
    return f"node {name} is {' '.join(sorted(node.states))}{why}"
