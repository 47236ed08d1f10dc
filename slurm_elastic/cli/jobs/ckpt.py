"""``slurm-elastic ckpt list|now JOB|explain JOB|notice NODE``: show and order checkpoints."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.local_time import moment
from slurm_elastic.base.units import counted, format_duration
from slurm_elastic.ckptman.site import pools_by_node
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.jobs.ckpt_tables import checkpoint_blocks
from slurm_elastic.cli.jobs.explain import document, explain
from slurm_elastic.cli.jobs.explain_text import SAVES, Explanation, render
from slurm_elastic.cli.machine_readable import write_json
from slurm_elastic.cli.operate.console import plain
from slurm_elastic.cli.orders import forgotten_jobs
from slurm_elastic.cli.orders.giving_orders import require_trusted, seconds_of
from slurm_elastic.cli.orders.subjects import job_label, job_number, queued_job_number
from slurm_elastic.cli.reports.shortened import words
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.config.job_checkpoint import why_no_method
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.audit_trail import jobs_of
from slurm_elastic.state.ckptstate.orders import (
    DROPS,
    AnyOrder,
    NoticeOrder,
    WithdrawOrder,
    drop,
)
from slurm_elastic.state.heartbeat import CKPTMAN
from slurm_elastic.watch.door.client import facts_of, save_job
from slurm_elastic.watch.view.attention import private_note
from slurm_elastic.watch.view.checkpoints import CheckpointsView, checkpoints_view
from slurm_elastic.watch.view.job_saves import choice_of, how

MAX_NOTICE_S = 366 * 86400.0  # a notice may announce an end at most this long ahead
KIND = "ckpt-"  # prefix of the kinds of decisions that slurm-elastic-ckptman records
VERSION = 1
"""Of the document of ``ckpt list --json``. Within one version fields are only added."""
_SAVED = ("ckpt-saved", "ckpt-found")  # kinds of decisions that record a whole save


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "ckpt",
        description="List and explain what slurm-elastic-ckptman does for jobs, save a job, or "
        "announce that a node will be taken away. 'now' is for the job's owner, root and "
        "SlurmUser, 'notice' for root and SlurmUser.",
        epilog=examples(
            "slurm-elastic ckpt list",
            "slurm-elastic ckpt now 42",
            "slurm-elastic ckpt notice pub1 --in 10m --reason 'disk errors'",
        ),
    )
    inner = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listed = inner.add_parser(
        "list",
        help="list saved jobs, notices, and jobs that are being moved",
        description="List the jobs that have checkpoints, the notices that threaten nodes, and the "
        "jobs that are being moved.",
        epilog=examples("slurm-elastic ckpt list"),
    )
    listed.add_argument("--json", action="store_true", help="print one JSON document")
    listed.set_defaults(run=_list)
    now = inner.add_parser(
        "now",
        help="save a job now and let it continue",
        description="Save a running job of your own now. The job continues afterwards. The order "
        "is recorded with your name; a user may order 10 saves in 10 minutes. Root and SlurmUser "
        "may save all jobs.",
        epilog=examples("slurm-elastic ckpt now 42"),
    )
    add_job(now, "a running job")
    now.set_defaults(run=_now)
    explained = inner.add_parser(
        "explain",
        help="show how a job is saved, and the decisions about its saves",
        description="Show by which method and policy a job is saved, and all decisions about its "
        "saves.",
        epilog=examples("slurm-elastic ckpt explain 42"),
    )
    add_job(explained, "a job")
    explained.add_argument(
        "--json", action="store_true", help="print every decision as one JSON document"
    )
    explained.set_defaults(run=_explain)
    _add_notice(inner)


def _add_notice(inner: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    notice = inner.add_parser(
        "notice",
        help="announce that a node will be taken away, so that its jobs are moved",
        description="Announce that a node will be taken away: its jobs are saved and moved to "
        "other nodes, and it gets no new jobs.",
        epilog=examples(
            "slurm-elastic ckpt notice pub1 --in 10m --reason 'disk errors'",
            "slurm-elastic ckpt notice pub1 --withdraw",
        ),
    )
    notice.add_argument("node", metavar="NODE", help="the name of a node")
    notice.add_argument("--in", dest="within", type=_seconds, metavar="TIME",
                        help="the node is taken away after this time, such as 2m (default: the "
                        "time is unknown)")  # fmt: skip
    notice.add_argument(
        "--reason", default="", metavar="TEXT", help="show this reason on the node and in explain"
    )
    notice.add_argument(
        "--rebalance",
        action="store_true",
        help="the node is in danger but may stay: save its jobs and leave them there",
    )
    notice.add_argument(
        "--withdraw", action="store_true", help="withdraw the notice: the node stays"
    )
    notice.set_defaults(run=_notice)


def add_job(parser: argparse.ArgumentParser, noun: str) -> None:
    """Add the argument for a job. ``noun``: which jobs are accepted."""
    parser.add_argument(
        "job", type=job_label, metavar="JOB",
        help=f"{noun}, as Slurm's commands write it, such as 18 or 18_3",
    )  # fmt: skip


def _seconds(text: str) -> float:
    duration = seconds_of(text)
    if duration > MAX_NOTICE_S:
        limit = format_duration(MAX_NOTICE_S)
        raise argparse.ArgumentTypeError(f"{text!r} is more than {limit}")
    return duration


def _list(args: argparse.Namespace) -> int:
    view = view_of(load(Path(args.config)), time.time())
    if args.json:
        write_json({"version": VERSION, **msgspec.to_builtins(view)})
        return 0
    console = plain()
    if view.private:
        console.print(private_note(view.private))
    for block in checkpoint_blocks(view):
        console.print(block)
    return 0


def view_of(config: Config, now: float) -> CheckpointsView:
    """The saves, notices and moves that slurm-elastic-ckptman knows.

    SlurmElasticError if it has never run here, or its records cannot be read.
    """
    facts = facts_of(config, now)
    if facts.checkpoints is None:
        if facts.checkpoints_error:
            problem = f"the records of saves cannot be read: {facts.checkpoints_error}"
            raise SlurmElasticError(f"{problem}; slurm-elastic doctor --quick says what to do")
        raise SlurmElasticError(f"{CKPTMAN} has never run on {config.state}")
    live = [machine for machine in facts.machines if not machine.has_ended]
    view = checkpoints_view(facts.checkpoints, live, now, config.timings.daemon_timeout)
    return msgspec.structs.replace(view, private=facts.private)


def _now(args: argparse.Namespace) -> int:
    config = load(Path(args.config))
    slurm = PromptCli(config.slurm)
    number = queued_job_number(config, slurm, args.job)
    for line in save_job(config, slurm, number, time.time()):
        print(line)
    _warn_if_away(config)
    return 0


def _notice(args: argparse.Namespace) -> int:
    config = load(Path(args.config))
    require_trusted(config)
    if args.withdraw and (args.within is not None or args.rebalance or args.reason):
        raise ConfigError("--withdraw cannot be combined with --in, --reason or --rebalance")
    node = args.node
    if node not in pools_by_node(config) and node not in PromptCli(config.slurm).nodes([node]):
        raise SlurmElasticError(f"Slurm has no node {node!r}")
    if args.withdraw:
        _send(config, WithdrawOrder(node=node))
        print(f"The notice for node {node} is withdrawn.")
        return 0
    deadline = None if args.within is None else time.time() + args.within
    order = NoticeOrder(
        node=node, reason=args.reason, deadline=deadline, rebalance=args.rebalance
    )  # fmt: skip
    _send(config, order)
    print(f"{CKPTMAN} is notified about node {node}; see: slurm-elastic ckpt list")
    return 0


def _send(config: Config, order: AnyOrder) -> None:
    place = config.state / DROPS
    try:
        with config.sharing():
            drop(place, order, time.time())
    except FileNotFoundError:
        raise SlurmElasticError(f"{CKPTMAN} has never run: {place} does not exist") from None
    _warn_if_away(config)


def _warn_if_away(config: Config) -> None:
    if not service_runs(config):
        print(f"{CKPTMAN} is NOT RUNNING: it does this when it starts", file=sys.stderr)


def service_runs(config: Config) -> bool:
    """Whether slurm-elastic-ckptman runs, as far as this user may see it."""
    try:
        return view_of(config, time.time()).alive
    except (OSError, SlurmElasticError):
        return False


def _explain(args: argparse.Namespace) -> int:
    config = load(Path(args.config))
    slurm = PromptCli(config.slurm)
    number = job_number(config, slurm, args.job)
    job = _job(slurm, number)
    explanation = explain(config, slurm, str(number))
    decisions = tuple(d for d in explanation.decisions if d.kind.startswith(KIND))
    saves = msgspec.structs.replace(
        explanation, about=SAVES, decisions=decisions, machines=(), verdicts=(), attention=()
    )
    if job is None or job.has_ended:
        headline = _how_it_ended(config, number, job, saves)
    else:
        be = "is" if job.nodes else "would be"
        headline = f"Job {job.label} {how(choice_of(config, job), be)}"
    if job is None and (row := forgotten_jobs.own_job(config, slurm, str(number))):
        saves = msgspec.structs.replace(saves, now=forgotten_jobs.sentence(row))
    if args.json:
        write_json({**document(saves), "headline": headline})
        return 0
    console = plain()
    console.print(words(headline))
    render(saves, console)
    return 0


def _how_it_ended(config: Config, number: int, job: SlurmJob | None, saves: Explanation) -> str:
    """The headline of an ended job. ``job``: None if Slurm has forgotten it."""
    label = job.label if job else saves.labels.get(number, str(number))
    ended = f"Job {label} has ended" + (f" as {' '.join(sorted(job.states))}" if job else "")
    # The decisions about a job's nodes are listed too, and they can be saves of other jobs.
    saved_at = [d.at for d in saves.decisions if d.kind in _SAVED and number in jobs_of(d)]
    if saved_at:
        count = counted(len(saved_at), "time")
        return f"{ended} and was saved {count}, last at {moment(saved_at[-1])}"
    if saves.private:
        return ended  # the records of its saves are hidden from this user
    choice = choice_of(config, job) if job else None
    if choice is not None and choice.method == "none":
        return f"{ended} and was NOT saved: {why_no_method(choice)}"
    by = f" by method {choice.method}" if choice else ""
    return f"{ended} and was NOT saved: the records have no save{by}"


def _job(slurm: Slurm, number: int) -> SlurmJob | None:
    """The job, also if it ended a short time ago."""
    return next((job for job in slurm.jobs(ended=True) if job.id == number), None)
