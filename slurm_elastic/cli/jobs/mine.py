"""``slurm-elastic mine``: the caller's jobs, what they cost, why they wait and what is saved."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace
from rich.console import Console, Group, RenderableType
from rich.text import Text

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.base.local_time import clock, minute, zone
from slurm_elastic.base.units import brief, counted, money
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.machine_readable import write_json
from slurm_elastic.cli.operate.columns import Rows
from slurm_elastic.cli.operate.console import plain
from slurm_elastic.cli.operate.looking import config_to_look
from slurm_elastic.cli.reports.cost import point
from slurm_elastic.cli.reports.shortened import words
from slurm_elastic.model.slurm import BOOTS
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.watch.door.client import own_jobs_of
from slurm_elastic.watch.door.questions import OwnJobsAsk
from slurm_elastic.watch.view.attention import sentence
from slurm_elastic.watch.view.own_jobs import (
    ENDED,
    RUNS,
    WAITS,
    JobSave,
    OwnJob,
    OwnJobs,
    StartForecast,
)

DAY_S = 86400.0
_COLUMNS = ("Job", "Name", "Where", "When", "Cost", "At most")
_MAX_LABELS = 6  # jobs that a shared reason names
_WARN, _NO_LIMIT = "yellow", "no limit"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "mine",
        description="Show your own jobs: where they run, since when or when they are expected to "
        "start, what they have cost and will cost at most, why they wait, and what is saved of "
        "them. Running jobs come first, then waiting jobs, then jobs that ended in the last day. "
        "'cost --by job' shows the same costs.",
        epilog=examples("slurm-elastic mine", "slurm-elastic mine --since 7d --json"),
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--since", type=point, metavar="TIME",
        help="list jobs that ended after this UTC time, such as 2026-11-01, or at most this long "
        "ago, such as 7d (default: 1d). Without slurmdbd, only jobs in clouds are listed once "
        "Slurm has forgotten them (MinJobAge)",
    )  # fmt: skip
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument(
        "--user", default="", metavar="NAME",
        help="show the jobs of this user; for root, SlurmUser, operators and viewers",
    )  # fmt: skip
    whose.add_argument(
        "--everyone",
        action="store_true",
        help="show the jobs of all users; for root, SlurmUser, operators and viewers",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the jobs. SlurmElasticError if they cannot be read or seen, ConfigError for a time to
    come.
    """
    config, now = config_to_look(args), time.time()
    since = now - DAY_S if args.since is None else args.since
    if since > now:
        raise ConfigError("--since is in the future")
    ask = OwnJobsAsk(since=since, user=args.user, everyone=args.everyone)
    document = own_jobs_of(config, PromptCli(config.slurm, excluded=False), ask, now)
    if args.json:
        write_json(document)
    else:
        render(document, plain())
    return 0


def render(document: OwnJobs, console: Console) -> None:
    """Print one table of all jobs, and notes about its columns."""
    if document.end_only:
        console.print(words(sentence(document.end_only), "bold red"))
    if document.slurm_error:
        text = f"Slurm does not answer: {document.slurm_error}. Only jobs in clouds are listed."
        console.print(words(text, "bold red"))
    jobs = document.jobs
    if not jobs:
        since = minute(document.since)
        text = f"{document.user} has no job, and had none since {since}."
        console.print(words(text if document.user else f"No job since {since}, and none now."))
        return
    console.print(_table(replace(document, jobs=_with_whole_arrays(jobs))))
    if document.left_out:
        console.print(f"and {counted(document.left_out, 'more job')} (not listed)")
    for text in _notes(jobs):
        console.print(Text(text, style="dim"))


def _with_whole_arrays(jobs: Sequence[OwnJob]) -> tuple[OwnJob, ...]:
    """The jobs with one row for the tasks of an array that ended in the same way, or that run in
    the same state and clouds and are saved alike.
    """
    rows: dict[object, list[OwnJob]] = {}
    for job in jobs:
        rows.setdefault(_row_key(job), []).append(job)
    return tuple(tasks[0] if len(tasks) == 1 else _in_one_row(tasks) for tasks in rows.values())


def _row_key(job: OwnJob) -> object:
    """Jobs with the same key share a row: tasks of an array that have started and are alike."""
    array, is_task, _ = job.label.partition("_")
    if not is_task or job.state == WAITS:
        return job.id
    if job.state == ENDED:
        return array, job.user, job.slurm_state, job.reason
    save = job.save and (job.save.method, job.save.reason, job.save.is_known, job.save.move)
    has_save = job.save is not None and job.save.at is not None
    return (
        array,
        job.user,
        job.slurm_state,
        job.clouds,
        at_most(job) in ("-", _NO_LIMIT),
        save,
        has_save,
    )


def _in_one_row(tasks: Sequence[OwnJob]) -> OwnJob:
    array, _, _ = tasks[0].label.partition("_")
    # A task that was cancelled after a requeue has no nodes.
    nodes = {node for task in tasks if task.nodes for node in expand(task.nodes)}
    return replace(
        tasks[0],
        label=f"{array} ({len(tasks)} tasks)",
        tasks=len(tasks),
        nodes=compress(sorted(nodes)),
        clouds=tuple(sorted({cloud for task in tasks for cloud in task.clouds})),
        started=min((task.started for task in tasks if task.started), default=0.0),
        ended=max(task.ended for task in tasks),
        micro=sum(task.micro for task in tasks),
        at_most=_sum_of(task.at_most for task in tasks),
        save=min((task.save for task in tasks if task.save), key=_saved_first, default=None),
    )


def _sum_of(values: Iterable[int | None]) -> int | None:
    """The sum; None if a value is unknown."""
    listed = list(values)
    return None if None in listed else sum(value for value in listed if value is not None)


def _saved_first(save: JobSave) -> float:
    # All work since the oldest save of a row is at risk.
    return save.at or 0.0


def title(document: OwnJobs) -> str:
    """The title of the table: ``Jobs of ann: 2 run, 1 boots, 1 waits, 3 ended; times in CET``."""
    tasks = Counter[str]()
    for job in document.jobs:
        tasks["boots" if _boots(job) else job.state] += job.tasks
    counts = [
        (tasks[state], singular, plural)
        for state, singular, plural in (
            (RUNS, "runs", "run"), ("boots", "boots", "boot"), (WAITS, "waits", "wait"),
            (ENDED, "ended", "ended"),
        )
    ]  # fmt: skip
    text = ", ".join(
        f"{count} {singular if count == 1 else plural}"
        for count, singular, plural in counts
        if count
    )
    whose = f"Jobs of {document.user}" if document.user else "Jobs of all users"
    return f"{whose}: {text}; times in {zone(document.at)}"


def _table(document: OwnJobs) -> Rows:
    """The table with all columns. On a narrow screen the reasons follow the table, or each job has
    some lines.
    """
    right = ("Cost", "At most")
    table = Rows(
        title(document), *_COLUMNS, "Why", "Saved", right=right,
        wrapped={"Why": 30, "Saved": 30}, gives=(("Name", 8), ("Where", 10)),
        otherwise=lambda: _narrow(document),
    )  # fmt: skip
    for job in document.jobs:
        style = _WARN if job.stuck else ""
        table.add(
            *_cells(job, document),
            words(why_text(job), style),
            words(saved_text(job.save, document.at)),
        )
    return table


def _cells(job: OwnJob, document: OwnJobs) -> list[Text]:
    label = job.label if document.user else f"{job.label} {job.user}"
    texts = (label, job.name, where(job), when(job, document.at))
    return [*map(words, texts), Text(money(job.micro / 1e6)), Text(at_most(job))]


def _narrow(document: OwnJobs) -> RenderableType:
    """A table without reasons, then each reason once with its jobs."""
    right = ("Cost", "At most")
    table = Rows(
        title(document), *_COLUMNS, "Saved", right=right, gives=(("Name", 8), ("Where", 10)),
        otherwise=lambda: _cards(document),
    )  # fmt: skip
    for job in document.jobs:
        table.add(*_cells(job, document), Text(_saved_word(job.save, document.at)))
    return Group(table, *_reasons(document.jobs))


def _reasons(jobs: Sequence[OwnJob]) -> Iterator[Text]:
    """Yield lines such as ``45, 46: can never start: ...``, each with the jobs of one reason."""
    labels: dict[tuple[str, str], list[str]] = {}
    for job in jobs:
        if reason := why_text(job):
            labels.setdefault((reason, _WARN if job.stuck else ""), []).append(job.label)
        if job.save and job.save.reason:
            what = "not saved" if job.save.at is None else "no new save"
            what = what if job.save.is_known else "saves not known"
            labels.setdefault((f"{what}: {job.save.reason}", ""), []).append(job.label)
    for (text, style), named in labels.items():
        others = f" and {len(named) - _MAX_LABELS} more" if len(named) > _MAX_LABELS else ""
        yield words(f"{', '.join(named[:_MAX_LABELS])}{others}: {text}", style)


def _saved_word(save: JobSave | None, now: float) -> str:
    if save is None:
        return ""
    if save.at is not None:
        return _saved_at(save.at, now)
    if not save.is_known:
        return "not known"
    return "no" if save.reason else "not yet"


def _cards(document: OwnJobs) -> RenderableType:
    """Print some lines for each job, for screens too narrow for a table."""
    lines: list[Text] = []
    for job in document.jobs:
        name = f" {job.name}" if job.name else ""
        lines.append(words(f"{job.label}{name}: {where(job)}, {when(job, document.at)}", "bold"))
        bound = at_most(job)
        limit = bound if bound in ("", _NO_LIMIT) else f"at most {bound}"
        lines.append(Text(f"  {money(job.micro / 1e6)}{', ' if limit else ''}{limit}"))
        if saved := _saved_word(job.save, document.at):
            lines.append(Text(f"  saved: {saved}"))
    return Group(Text(title(document), style="bold"), *lines)


def where(job: OwnJob) -> str:
    """The nodes of a job with their clouds, or its partitions if it has no nodes."""
    if not job.nodes:
        return ",".join(job.partitions)
    return f"{job.nodes} ({', '.join(job.clouds)})" if job.clouds else job.nodes


def when(job: OwnJob, now: float) -> str:
    """The time of a job as text: ``since 20:14``, ``in ~4m`` or ``ended 20:14``. A time of another
    day has its date.
    """
    if job.state == ENDED:
        return f"ended {_time(job.ended, now)}"
    if job.state == RUNS:
        return f"{'boots' if _boots(job) else 'since'} {_time(job.started, now)}"
    if job.begin:
        return f"not before {_time(job.begin, now)}"
    return start_text(job.start) if job.start else "waits"


def _boots(job: OwnJob) -> bool:
    """Whether the job has nodes that are not up yet."""
    return job.state == RUNS and BOOTS in job.slurm_state.split()


def start_text(start: StartForecast) -> str:
    """The time until a start as text, such as ``in 4m``. A rough guess has ``~`` and one unit."""
    seconds = start.seconds[1]
    if seconds < 1:
        return "now"
    if not start.is_guess:
        return f"in {brief(seconds)}"
    unit = next((unit for unit in (86400, 3600, 60) if seconds >= unit), 1)
    return f"in ~{brief(max(round(seconds / unit), 1) * unit)}"


def cost_and_start(job: OwnJob) -> Iterator[str]:
    """The sentences at the end of ``explain``."""
    cost = f"Cost: {money(job.micro / 1e6)}"
    if job.state == ENDED:
        yield f"{cost}."
    elif job.at_most is not None:
        basis = "the dearest price" if job.state == WAITS else "its time limit"
        yield f"{cost} so far, at most {money(job.at_most / 1e6)} (by {basis})."
    elif job.has_no_limit:
        yield f"{cost} so far. It has no time limit, so there is no upper bound."
    else:
        yield f"{cost} so far."
    if job.begin:
        yield f"Expected start: not before {minute(job.begin)}."
    elif job.start is not None:
        guess = " This is a rough guess: the site has few ended jobs." if job.start.is_guess else ""
        yield f"Expected start: {start_text(job.start)} in partition {job.start.partition}.{guess}"


def _time(timestamp: float, now: float) -> str:
    if not timestamp:
        return "-"
    local = time.localtime(timestamp)
    is_today = local[:3] == time.localtime(now)[:3]
    return time.strftime("%H:%M" if is_today else "%m-%d", local)


def at_most(job: OwnJob) -> str:
    """The largest cost of a job in dollars. ``no limit`` if the job has no time limit, "" after its
    end.
    """
    if job.state == ENDED:
        return ""
    if job.at_most is None:
        return _NO_LIMIT if job.has_no_limit else "-"
    return money(job.at_most / 1e6)


def why_text(job: OwnJob) -> str:
    """Why the job waits, and what helps or when a sold-out cloud is asked again."""
    if job.state == ENDED:
        return f"{job.slurm_state} {job.reason}".rstrip()
    text = job.reason
    if job.stuck and job.advice:
        return f"{text}; do: {job.advice}"
    if job.retry_at:
        text = f"{text}; asked again at {clock(job.retry_at)}"
    return text


def saved_text(save: JobSave | None, now: float) -> str:
    """The newest save as text: ``20:14 (criu)``, ``not yet (criu)``, ``no: REASON`` or
    ``not known: REASON``. "" if there is nothing to say. A save of another day has its date.
    """
    if save is None:
        return ""
    move = f", {save.move}" if save.move else ""
    if save.at is not None:
        warning = f"; no new save: {save.reason}" if save.reason else ""
        return f"{_saved_at(save.at, now)} ({save.method}){move}{warning}"
    if not save.is_known:
        return f"not known: {save.reason}"
    return f"no: {save.reason}" if save.reason else f"not yet ({save.method}){move}"


def _saved_at(at: float, now: float) -> str:
    # A time without its date reads as today, but all work since that day is at risk.
    local = time.localtime(at)
    is_today = local[:3] == time.localtime(now)[:3]
    return time.strftime("%H:%M" if is_today else "%m-%d %H:%M", local)


def _notes(jobs: Sequence[OwnJob]) -> Sequence[str]:
    """Sentences about the columns with values."""
    notes = []
    if any(job.start and job.start.is_guess for job in jobs):
        notes.append("Starts with ~ are rough guesses: this site has few ended jobs so far.")
    if any(job.at_most for job in jobs):
        notes.append(
            "At most: up to the time limit, on the machines that it has; for a waiting job on "
            "whole machines at the dearest price."
        )
    return notes
