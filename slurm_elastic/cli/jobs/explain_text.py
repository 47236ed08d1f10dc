"""The text of ``explain`` for one subject: its present state, then its decisions by time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.local_time import localised, moment, zone
from slurm_elastic.base.units import brief, counted, money
from slurm_elastic.cli.jobs import why_not
from slurm_elastic.cli.jobs.mine import cost_and_start
from slurm_elastic.cli.operate import cloud_table
from slurm_elastic.cli.operate.cloud_table import RankedCloudRow
from slurm_elastic.cli.operate.status_screen import NARROW, WIDE
from slurm_elastic.cli.reports.repeated_text import without_repeats
from slurm_elastic.cli.reports.shortened import hosts, offers, words
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.pool_failures import ConsoleRead
from slurm_elastic.model.requeued_jobs import WAITS_SINCE
from slurm_elastic.policies.launch.grouping import kind_of
from slurm_elastic.policies.launch.verdict import Verdict
from slurm_elastic.state.audit_trail import jobs_of, nodes_of
from slurm_elastic.state.ledger import Decision, Machine
from slurm_elastic.state.store.view import to_json
from slurm_elastic.watch.view.attention import private_note
from slurm_elastic.watch.view.own_jobs import OwnJob

OFFERS_SHOWN = 20
MACHINES_SHOWN = 5
DETAILS_SHOWN = 6
LINES = 40  # lines that are printed where not all are asked for
_KIND_WIDTH = 16
SAVES = "job's saves"
"""The subject of ``ckpt explain``: the decisions of slurm-elastic-ckptman alone."""
_OFFERS = ("ranked", "behind", "refused", "rejected")
_FOR_PROGRAMS = ("jobs", "now", "plan", "move", WAITS_SINCE)
"""Keys of details that only ``--json`` prints: nodes by job, measurements, the end of a run, the
begin of a wait.
"""


class Explanation(Struct, frozen=True, kw_only=True):
    """The document of ``explain --json``. ``about``: ``node``, ``job``, ``pool`` or ``site`` (a
    node or a partition of the site itself). ``now``: a sentence about its state in Slurm, or about
    the machines that a pool starts. ``attention``: what a person should do, or need not do.

    ``machines``: of a node all since its first decision, of a job in their order, of a pool the
    present ones, the alarming ones last. ``end_only``: why the daemon buys nothing. ``verdicts``:
    for each pool why a pending job gets no machine there. ``clouds``: where a pending job starts
    first, and its cost there. ``job``: the row of ``mine`` for an own job, with its cost and start.
    ``labels``: by job number, how Slurm's commands call a job of the decisions, such as ``33_2``.
    """

    subject: str
    about: str
    now: str
    machines: tuple[Machine, ...]
    decisions: tuple[Decision, ...]
    private: tuple[str, ...] = ()
    version: int = 1
    end_only: str = ""
    verdicts: tuple[Verdict, ...] = ()
    attention: tuple[str, ...] = ()
    clouds: tuple[RankedCloudRow, ...] = ()
    job: OwnJob | None = None
    labels: Mapping[int, str] = {}


def render(explanation: Explanation, console: Console) -> None:
    """Print the whole chain for people."""
    _head(explanation, console)
    day = ""
    for decision in explanation.decisions:
        day = _day(decision, day, console)
        _decision(decision, console, explanation)
    _end(explanation, console)


def render_short(explanation: Explanation, console: Console, lines: int = LINES) -> None:
    """Print the newest causes, each once at its last time, as many as fit into ``lines``."""
    head = _printed(console, partial(_head, explanation, console, machines=MACHINES_SHOWN))
    told = _last_times(explanation.decisions)
    end = _printed(console, partial(_end, explanation, console))
    room = lines - len(head) - len(end) - 2  # two lines may say what is left out
    chosen: list[tuple[Decision, str]] = []
    for decision, again in reversed(told):
        write = partial(
            _decision, decision, console, explanation, again=again, printed=str(decision.cause)
        )
        block = _printed(console, write)
        new_day = not chosen or _date(chosen[-1][0]) != _date(decision)
        room -= len(block) + 2 * new_day
        if room < 0 and chosen:
            break
        chosen.append((decision, again))
    _print(head, console)
    day, printed = "", [one.reason for one in explanation.verdicts]
    for decision, again in reversed(chosen):
        day = _day(decision, day, console)
        whole = str(decision.cause)
        short = decision
        if not isinstance(decision.cause, ConsoleRead):  # whose lines are printed below it
            short = replace(decision, cause=Quoted(text=without_repeats(whole, printed)))
        _decision(short, console, explanation, again=again, printed=whole)
        printed.append(whole)
    left_out = len(told) - len(chosen)
    if left_out or len(told) < len(explanation.decisions):
        count = len(explanation.decisions)
        console.print(Text(f"\n{len(chosen)} of {count} decisions; --all prints all.", style="dim"))
    _print(end, console)


def _end(explanation: Explanation, console: Console) -> None:
    """Print the job's cost and expected start."""
    if explanation.job is not None:
        for text in cost_and_start(explanation.job):
            console.print(words(text))


def _head(explanation: Explanation, console: Console, machines: int | None = None) -> None:
    if explanation.private:
        console.print(Text(private_note(explanation.private), style="yellow"))
    console.print(words(explanation.now, "bold"))
    for text in explanation.attention:
        console.print(words(text, "yellow"))
    for machine in explanation.machines[-machines:] if machines else explanation.machines:
        console.print(Padding(_machine(machine), (0, 0, 0, 2), expand=False))
    if machines and explanation.machines[machines:]:
        left = counted(len(explanation.machines) - machines, "more machine")
        console.print(f"  and {left} (--all)")
    why_not.show(explanation.verdicts, console, rows=why_not.ROWS if machines else None)
    cloud_table.show(explanation.clouds, console)
    if not explanation.decisions and (text := _without_decisions(explanation)):
        console.print(Text(text, style="dim"))


def _without_decisions(explanation: Explanation) -> str:
    """The sentence for a subject without decisions. Most jobs and nodes need none."""
    machines, about = explanation.machines, explanation.about
    if about == SAVES:
        return "slurm-elastic-ckptman has not acted on this job."
    if about == "pool":
        return "Decisions about its nodes: slurm-elastic explain NODE" if machines else ""
    if about == "node":
        return "" if machines else "slurm-elastic has not acted on this node."
    if about != "job" or explanation.verdicts or explanation.attention:
        return ""
    own = int(explanation.subject)
    if any(own in machine.jobs for machine in machines):
        return ""
    if machines:
        return "slurm-elastic started no machine for it: it took machines that were there already."
    return "slurm-elastic has not acted on this job."


def _last_times(decisions: Sequence[Decision]) -> list[tuple[Decision, str]]:
    """The last decision of each kind and cause, by time, with how often it was taken. Its subjects
    are those of all these decisions, the latest first. If the figures differ each time, decisions
    about different jobs stay apart, so that no job shows the figures of another.
    """
    found: dict[tuple[str, object], list[Decision]] = {}
    for decision in decisions:
        found.setdefault((decision.kind, kind_of(decision.cause)), []).append(decision)
    parts = [part for all_of in found.values() for part in _of_one_cause(all_of)]
    return sorted(map(_as_one, parts), key=lambda one: one[0].at)


def _of_one_cause(decisions: Sequence[Decision]) -> Iterable[Sequence[Decision]]:
    if len({decision.cause for decision in decisions}) == 1:
        return [decisions]
    by_job: dict[tuple[int, ...], list[Decision]] = {}
    for decision in decisions:
        by_job.setdefault(tuple(jobs_of(decision)), []).append(decision)
    return by_job.values()


def _as_one(decisions: Sequence[Decision]) -> tuple[Decision, str]:
    last = decisions[-1]
    if len(decisions) == 1:
        return last, ""
    subjects = dict.fromkeys(name for one in reversed(decisions) for name in one.subjects)
    often = f"{len(decisions)} times since {_clock(decisions[0].at, day=True)}"
    return replace(last, subjects=tuple(subjects)), often


def _printed(console: Console, write: Callable[[], None]) -> list[str]:
    """The lines that ``write`` prints, styled as for this console."""
    with console.capture() as captured:
        write()
    return captured.get().splitlines()


def _print(lines: Sequence[str], console: Console) -> None:
    for line in lines:
        console.print(Text.from_ansi(line), no_wrap=True, overflow="ignore", crop=False)


def _day(decision: Decision, day: str, console: Console) -> str:
    """Print the decision's day if ``day`` was another one. Return the decision's day."""
    today = _date(decision)
    if today != day:
        console.print()
        console.print(Text(f"{today}, times in {zone(decision.at)}", style="dim"))
    return today


def _date(decision: Decision) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(decision.at))


def _machine(machine: Machine) -> Text:
    i = machine.instance
    text = Text(f"{i.node}: {i.id}, {i.instance_type} in {i.zone}, {i.market}, {money(i.price)}/h")
    text.append(f", since {_clock(i.launched, day=True)}")
    why = "" if machine.cause_text is None else f": {machine.cause_text}"
    if machine.ended_at is not None:
        text.append(f", ended after {brief(machine.ended_at - i.launched)}{why}")
    elif machine.retired_at is not None:
        text.append(f", terminating{why}")
    return text


def _decision(
    decision: Decision,
    console: Console,
    explanation: Explanation,
    *,
    again: str | None = None,
    printed: str = "",
) -> None:
    """Print one decision.

    ``again``: how often the decision was taken. If it is set, only the first lines of the
    decision's detail are printed. A reason that was ``printed`` before is left out.
    """
    small = console.width < NARROW
    margin = 4 if small else 10
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(width=8)
    line.add_column(min_width=_KIND_WIDTH, no_wrap=True)
    line.add_column(overflow="fold")
    reason = words(localised(str(decision.reason), decision.at))
    beside = Text() if small else reason
    line.add_row(Text(_clock(decision.at)), Text(decision.kind, style="bold"), beside)
    console.print(line)
    if small:
        console.print(Padding(reason, (0, 0, 0, margin), expand=False))
    often = f", {again}" if again else ""
    whole = again is None
    request = f"[{decision.correlation}]  " if whole else ""  # for who looks into the logs
    top, wide = None if whole else 1, console.width >= WIDE
    nodes = hosts(compress(nodes_of(decision)), top, wide=wide, first=explanation.subject).plain
    jobs = [explanation.labels.get(job, str(job)) for job in jobs_of(decision)]
    about = words(f"{request}{_subjects(nodes, jobs)}{often}", "dim")
    if about.plain:
        console.print(Padding(about, (0, 0, 0, margin), expand=False))
    details = [*_console(decision), *_details(decision.detail or {}, "" if whole else printed)]
    for text in details if again is None else details[:DETAILS_SHOWN]:
        console.print(Padding(text, (0, 0, 0, margin + 2), expand=False))
    if again is not None and details[DETAILS_SHOWN:]:
        more = Text(f"and {len(details) - DETAILS_SHOWN} more lines", style="dim")
        console.print(Padding(more, (0, 0, 0, margin + 2), expand=False))


def _subjects(nodes: str, jobs: Sequence[str]) -> str:
    shown = ", ".join(jobs[:6]) + (f" and {len(jobs) - 6} more" if jobs[6:] else "")
    parts = [nodes] if nodes else []
    if jobs:
        parts.append(f"{'job' if len(jobs) == 1 else 'jobs'} {shown}")
    return ", ".join(parts)


def _console(decision: Decision) -> Iterable[Text]:
    """The lines of a console except its last line, which the reason contains."""
    if isinstance(decision.cause, ConsoleRead):
        yield from (words(line, "dim") for line in decision.cause.lines[-DETAILS_SHOWN - 1 : -1])


def _details(detail: dict[str, object], printed: str) -> Iterable[Text]:
    for key, value in detail.items():
        if key in _OFFERS and isinstance(value, list):
            yield from _offers(key, value, printed)
        elif key not in _FOR_PROGRAMS:
            yield words(f"{key}: {value if isinstance(value, str) else to_json(value)}")


def _offers(kind: str, rows: Sequence[object], printed: str) -> Iterable[Text]:
    style = "green" if kind == "ranked" else "yellow"
    for row in rows[:OFFERS_SHOWN]:
        yield Text.assemble((f"{kind:<9}", style), _offer(row, printed))
    if len(rows) > OFFERS_SHOWN:
        yield Text(f"{kind:<9}and {len(rows) - OFFERS_SHOWN} more (--json has all)", style="dim")


def _offer(row: object, printed: str) -> str:
    """An offer of a decision's detail as text: ``[key, room, reason]``, ``[key, reason]``,
    ``[reason, count, which]``, a name, or other. A reason that the decision has ``printed`` is left
    out.
    """
    if isinstance(row, str):
        return offers(row)
    if not isinstance(row, list) or not row:
        return to_json(row)
    key, *rest = row
    if len(rest) == 2 and isinstance(rest[1], list):
        names = "; ".join(offers(str(name)) for name in rest[1])
        return names if key and str(key) in printed else f"{names}: {key}"
    room = f" for {counted(rest[0], 'node')}" if rest and isinstance(rest[0], int) else ""
    reason = " ".join(str(part) for part in (rest[1:] if room else rest))
    return f"{key}{room}: {reason}" if reason else f"{key}{room}"


def _clock(at: float, *, day: bool = False) -> str:
    return moment(at) if day else time.strftime("%H:%M:%S", time.localtime(at))
