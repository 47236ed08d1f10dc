"""``slurm-elastic explain``: why things happened to a node, job, pool or cloud, by the ledger."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct, structs
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.base.hostlist import compress, expand
from slurm_elastic.base.units import brief, money
from slurm_elastic.cli import why_not
from slurm_elastic.cli.console import plain
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.machine_readable import write_json
from slurm_elastic.cli.shortened import hosts, offers, words
from slurm_elastic.cli.status_machines import NARROW
from slurm_elastic.cli.subjects import MOST, subjects
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.configfile import load
from slurm_elastic.config.document import shown
from slurm_elastic.config.rules import rules_of
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.launch.grouping import generalised
from slurm_elastic.policies.launch.verdict import Verdict
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.audit_trail import jobs_of, nodes_of
from slurm_elastic.state.heartbeat import Mark, alive, process_exists, read_mark, told
from slurm_elastic.state.ledger import Decision, Machine
from slurm_elastic.state.store.view import to_json
from slurm_elastic.watch.door.client import chain_of
from slurm_elastic.watch.door.questions import Chain, ChainAsk
from slurm_elastic.watch.view.attention import private_note

OFFERS_SHOWN = 20
MACHINES_SHOWN = 5
DETAILS_SHOWN = 6
LINES = 40  # lines that are printed where not all are asked for
_KIND_WIDTH = 16
_OFFERS = ("ranked", "behind", "refused", "rejected")
_JOB_NUMBER = re.compile(r"[0-9]{1,10}")


class Explanation(Struct, frozen=True, kw_only=True):
    """The document of ``explain --json``. ``about`` is ``node``, ``job`` or ``pool``; ``now`` says
    in a sentence how Slurm has it, or which policies a pool has; ``machines`` are those of the node
    since the first decision, those of the job in its order, or the pool's now; ``end_only`` is why
    the daemon buys nothing. ``verdicts`` say of a pending job for each pool why it gets no machine
    of it.
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
        "18, 18_3 (a task of an array), 18.batch (a step); a pool; a cloud, for all of its pools",
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
        for trouble in filter(None, (why, _silent(mark, now, stale))):
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


def _silent(mark: Mark | None, now: float, stale: float) -> str:
    """That the daemon does not run, so nothing is decided; "" where it does, or nobody can tell."""
    if mark is None or alive(mark.beat, process_exists(mark.pid), now, stale):
        return ""
    ago = brief(max(now - mark.at, 0.0))
    return f"slurm-elasticd is NOT RUNNING (last sign of life {ago} ago): nothing is decided"


def _show_one(
    explanation: Explanation, why: str, console: Console, *, as_json: bool, whole: bool
) -> None:
    if explanation.end_only and not why and not as_json:  # told by the daemon
        console.print(words(explanation.end_only, "bold red"))
    if as_json:
        write_json(structs.replace(explanation, end_only=why or explanation.end_only))
    else:
        (render if whole else render_short)(explanation, console)


def explain(config: Config, slurm: Slurm, subject: str) -> Explanation:
    """Read the chain of ``subject`` and its state by Slurm."""
    pool_of = {node: p for p in domain_pools(config, expand) for node in p.nodes}
    number = _job_number(subject) if subject not in pool_of else None
    if number is not None:
        return _explain_job(config, slurm, number)
    if subject not in pool_of and any(subject == pool.name for pool in config.pools):
        return _explain_pool(config, subject)
    return _explain_node(config, slurm, subject, known=subject in pool_of)


def _explain_job(config: Config, slurm: Slurm, number: int) -> Explanation:
    job, trouble = _job(slurm, number)
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
    return structs.replace(found, verdicts=why_not.judge(config, slurm, job, chain, now))


def _explain_pool(config: Config, name: str) -> Explanation:
    pool = next(pool for pool in config.pools if pool.name == name)
    own = rules_of(config, pool)
    release = "by Slurm's SuspendTime" if own.release is None else text_of(own.release)
    now = f"pool {name}: growth {text_of(own.growth)}, release {release}"
    chain = chain_of(config, ChainAsk(about="pool", name=name), time.time())
    return _explanation(name, "pool", now, chain)


def _explain_node(config: Config, slurm: Slurm, name: str, *, known: bool) -> Explanation:
    # A word that was no UTF-8 on the command line cannot be asked for, and names nothing.
    ask = ChainAsk(about="node", name=name)
    chain = chain_of(config, ask, time.time()) if name.isprintable() else Chain()
    if not known and not chain.decisions:
        raise SlurmElasticError(
            f"nothing is known about {shown(name)}: it is neither a node of a configured pool nor "
            "a pool, a cloud or the number of a job (18, 18_3, 18.batch)"
        )
    return _explanation(name, "node", _node_now(slurm, name), chain)


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


def _job(slurm: Slurm, number: int) -> tuple[SlurmJob | None, str]:
    """The job, and what is wrong where Slurm could not be asked."""
    try:
        return next((j for j in slurm.jobs(ended=True) if j.id == number), None), ""
    except SlurmError as error:
        return None, f"Slurm does not answer: {error}"


def _job_now(number: int, job: SlurmJob | None, ours: Collection[str]) -> str:
    if job is None:
        return f"job {number} is no longer in Slurm's queue"
    where = f" on {compress(job.nodes)}" if job.nodes else ""
    if job.nodes and not job.has_ended and set(job.nodes).isdisjoint(ours):
        where += ", nodes of the site itself"
    why = f" ({job.reason})" if job.reason not in ("", "None") else ""
    of = f" of {job.user}" if job.user else ""
    return f"job {number}{of} is {' '.join(sorted(job.states))}{where}{why}"


def _node_now(slurm: Slurm, name: str) -> str:
    try:
        node: SlurmNode | None = slurm.nodes([name]).get(name)
    except SlurmError as error:
        return f"Slurm does not answer: {error}"
    if node is None:
        return f"Slurm does not list node {name}"
    why = f": {node.reason}" if node.reason else ""
    return f"node {name} is {' '.join(sorted(node.states))}{why}"


def render(explanation: Explanation, console: Console) -> None:
    """Print the whole chain for people."""
    _head(explanation, console)
    day = ""
    for decision in explanation.decisions:
        day = _day(decision, day, console)
        _decision(decision, console)


def render_short(explanation: Explanation, console: Console, lines: int = LINES) -> None:
    """Print each cause once, by its last time, as many of the newest as go into ``lines``."""
    head = _printed(console, partial(_head, explanation, console, machines=MACHINES_SHOWN))
    told = _last_times(explanation.decisions)
    room = lines - len(head) - 2  # the last two lines may say what is left out
    chosen: list[tuple[Decision, list[str]]] = []
    for decision, again in reversed(told):
        block = _printed(console, partial(_decision, decision, console, again=again))
        new_day = not chosen or _date(chosen[-1][0]) != _date(decision)
        room -= len(block) + 2 * new_day
        if room < 0 and chosen:
            break
        chosen.append((decision, block))
    _print(head, console)
    day = ""
    for decision, block in reversed(chosen):
        day = _day(decision, day, console)
        _print(block, console)
    left_out = len(told) - len(chosen)
    if left_out or len(told) < len(explanation.decisions):
        count = len(explanation.decisions)
        console.print(Text(f"\n{len(chosen)} of {count} decisions; --all prints all.", style="dim"))


def _head(explanation: Explanation, console: Console, machines: int | None = None) -> None:
    if explanation.private:
        console.print(Text(private_note(explanation.private), style="yellow"))
    console.print(words(explanation.now, "bold"))
    for machine in explanation.machines[-machines:] if machines else explanation.machines:
        console.print(Padding(_machine(machine), (0, 0, 0, 2), expand=False))
    if machines and explanation.machines[machines:]:
        console.print(f"  and {len(explanation.machines) - machines} more machine(s) (--all)")
    if not explanation.decisions:
        console.print(Text(f"No decision about this {explanation.about} is in the ledger."))
    why_not.show(explanation.verdicts, console, rows=why_not.ROWS if machines else None)


def _last_times(decisions: Sequence[Decision]) -> list[tuple[Decision, str]]:
    """The last decision of each kind and cause, by time, and how often it was taken before."""
    found: dict[tuple[str, str], list[Decision]] = {}
    for decision in decisions:
        found.setdefault((decision.kind, generalised(decision.reason)), []).append(decision)
    last = [
        (all_of[-1], f"{len(all_of)} times since {_clock(all_of[0].at, day=True)}")
        if all_of[1:]
        else (all_of[0], "")
        for all_of in found.values()
    ]
    return sorted(last, key=lambda one: one[0].at)


def _printed(console: Console, write: Callable[[], None]) -> list[str]:
    """The lines that ``write`` prints, styled as for this console."""
    with console.capture() as captured:
        write()
    return captured.get().splitlines()


def _print(lines: Sequence[str], console: Console) -> None:
    for line in lines:
        console.print(Text.from_ansi(line), no_wrap=True, overflow="ignore", crop=False)


def _day(decision: Decision, day: str, console: Console) -> str:
    """Print the decision's day where it is a new one; returns it."""
    today = _date(decision)
    if today != day:
        console.print()
        console.print(Text(today, style="dim"))
    return today


def _date(decision: Decision) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(decision.at))


def _machine(machine: Machine) -> Text:
    i = machine.instance
    text = Text(f"{i.node}: {i.id}, {i.instance_type} in {i.zone}, {i.market}, {money(i.price)}/h")
    text.append(f", since {_clock(i.launched, day=True)}")
    if machine.ended is not None:
        text.append(f", ended after {brief(machine.ended - i.launched)}: {machine.why}")
    elif machine.suspending is not None:
        text.append(f", terminating: {machine.why}")
    return text


def _decision(decision: Decision, console: Console, *, again: str | None = None) -> None:
    """With ``again`` (how often it was taken; or nothing) only so many lines of its detail."""
    small = console.width < NARROW
    margin = 4 if small else 10
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(width=8)
    line.add_column(min_width=_KIND_WIDTH, no_wrap=True)
    line.add_column(overflow="fold")
    beside = Text() if small else words(decision.reason)
    line.add_row(Text(_clock(decision.at)), Text(decision.kind, style="bold"), beside)
    console.print(line)
    if small:
        console.print(Padding(words(decision.reason), (0, 0, 0, margin), expand=False))
    often = f", {again}" if again else ""
    whole = again is None
    request = f"[{decision.correlation}]  " if whole else ""  # for who looks into the logs
    about = words(f"{request}{_subjects(decision, whole=whole)}{often}", "dim")
    if about.plain:
        console.print(Padding(about, (0, 0, 0, margin), expand=False))
    details = list(_details(decision.detail or {}))
    for text in details if again is None else details[:DETAILS_SHOWN]:
        console.print(Padding(text, (0, 0, 0, margin + 2), expand=False))
    if again is not None and details[DETAILS_SHOWN:]:
        more = Text(f"and {len(details) - DETAILS_SHOWN} more lines", style="dim")
        console.print(Padding(more, (0, 0, 0, margin + 2), expand=False))


def _subjects(decision: Decision, *, whole: bool) -> str:
    jobs = jobs_of(decision)
    shown = ", ".join(str(j) for j in jobs[:6]) + (f" and {len(jobs) - 6} more" if jobs[6:] else "")
    nodes = compress(nodes_of(decision))
    parts = [nodes if whole else hosts(nodes, 1).plain] if nodes else []
    if jobs:
        parts.append(f"{'job' if len(jobs) == 1 else 'jobs'} {shown}")
    return ", ".join(parts)


def _details(detail: dict[str, object]) -> Iterable[Text]:
    for key, value in detail.items():
        if key in _OFFERS and isinstance(value, list):
            yield from _offers(key, value)
        elif key not in ("jobs", "now", "plan"):  # what was measured, nodes by job: --json has all
            yield Text(f"{key}: {value if isinstance(value, str) else to_json(value)}")


def _offers(kind: str, rows: Sequence[object]) -> Iterable[Text]:
    style = "green" if kind == "ranked" else "yellow"
    for row in rows[:OFFERS_SHOWN]:
        yield Text.assemble((f"{kind:<9}", style), _offer(row))
    if len(rows) > OFFERS_SHOWN:
        yield Text(f"{kind:<9}and {len(rows) - OFFERS_SHOWN} more (--json has all)", style="dim")


def _offer(row: object) -> str:
    """``[key, room, reason]``, ``[key, reason]``, ``[reason, count, which]``, a name, or other."""
    if isinstance(row, str):
        return offers(row)
    if not isinstance(row, list) or not row:
        return to_json(row)
    key, *rest = row
    if len(rest) == 2 and isinstance(rest[1], list):
        return f"{'; '.join(offers(str(name)) for name in rest[1])}: {key}"
    room = f" for {rest[0]} node(s)" if rest and isinstance(rest[0], int) else ""
    reason = " ".join(str(part) for part in (rest[1:] if room else rest))
    return f"{key}{room}: {reason}" if reason else f"{key}{room}"


def _clock(at: float, *, day: bool = False) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S" if day else "%H:%M:%S", time.localtime(at))
