"""Whether ``cost`` says what the page's rule makes of the machines and runs on record, whichever
way it is summed. Whether these are what the clouds ask for is judged by ``tests.chaos.books``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config
from slurm_elastic.watch.door.questions import CostAsk
from slurm_elastic.watch.door.records import opened, read_costs
from tests.oracle.bill import MICRO, Paid, Use, exact, ms, paid_end, parts

KEYS = ("account", "user", "job", "partition", "pool", "market", "cloud", "type", "day")
HOUR = 3600.0
OF_JOBS = ("account", "user", "job")


class Record(NamedTuple):
    """What is on record: machines (with earlier parts of their lives), runs of jobs, drains."""

    machines: Sequence[Any]
    runs: Sequence[Any]
    drains: Sequence[Any]


def record_of(config: Config, now: float) -> Record:
    with opened(config) as ledger:
        return Record(
            ledger.machines.live(ended_since=0.0, stopped=True),
            ledger.usage.runs(0.0, now),
            ledger.usage.drains(0.0, now),
        )


def cost(
    config: Config, by: str, now: float, since: float = 0.0, until: float | None = None
) -> Any:
    """The answer of ``slurm-elastic cost --by BY``."""
    ask = msgspec.convert({"by": by, "since": since, "until": until}, CostAsk)
    return read_costs(config, ask, now)


def wrongs(config: Config, now: float) -> Iterator[str]:
    """What ``cost`` says that is not so. Reserved capacity is not judged."""
    if config.held:
        return
    record = record_of(config, now)
    paid = [(machine, paid_of(machine, now)) for machine in record.machines]
    whole = sum(_rounded(p.micro) for _, p in paid)
    answers = {by: cost(config, by, now) for by in KEYS}
    for by, answer in answers.items():
        if answer.problems:
            yield f"cost --by {by}: {answer.problems}"
        lines = sum(line.micro for line in answer.lines)
        if not answer.micro == lines == whole:
            yield f"cost --by {by}: {answer.micro}, its lines {lines}, the page's rule {whole}"
    for by in OF_JOBS:
        yield from _lines(by, answers[by], record, paid, now)
    yield from _of_clouds(answers["cloud"], paid)
    yield from _spans(config, now, whole)


def paid_of(machine: Any, now: float) -> Paid:
    begin = machine.instance.launched
    ended = now if machine.ended_at is None else machine.ended_at
    over = ended if machine.retired_at is None else min(machine.retired_at, ended)
    up = over if machine.registered_at is None else machine.registered_at
    end = paid_end(begin, ended, machine.terms.billing_increment_s)
    return Paid(
        ms(begin), ms(end), ms(up), ms(over), exact(machine.instance.price), machine.is_off
    )  # fmt: skip


def _rounded(micro: Fraction) -> int:
    return int(micro + Fraction(1, 2))


def _lines(
    by: str, answer: Any, record: Record, paid: Sequence[tuple[Any, Paid]], now: float
) -> Iterator[str]:
    """Each line is the page's, but for what rounding may do in each machine's hour."""
    expected: defaultdict[str, Fraction] = defaultdict(Fraction)
    pieces: defaultdict[str, int] = defaultdict(int)
    drains = defaultdict(list)
    for row in record.drains:
        drains[row.node].append((ms(row.begin), ms(now if row.end is None else row.end)))
    for machine, of_machine in paid:
        uses = list(_uses(by, machine, of_machine, record.runs, now))
        for who, micro in parts(of_machine, uses, drains[machine.instance.node]).items():
            expected[who] += micro
            pieces[who] += len(record.runs) + 2 + (of_machine.end - of_machine.begin) // 3_600_000
    said = {line.key: line.micro for line in answer.lines}
    for who in sorted(expected.keys() | said.keys()):
        off = abs(said.get(who, 0) - expected[who])
        if off > pieces[who] + 1:
            yield f"cost --by {by}: {who!r} {said.get(who, 0)}, the page's rule {float(expected[who]):.1f}"


def _uses(by: str, machine: Any, paid: Paid, runs: Sequence[Any], now: float) -> Iterator[Use]:
    """The runs on the machine: they begin before its end is decided, and end with it."""
    if paid.off:
        return
    ended = ms(now if machine.ended_at is None else machine.ended_at)
    for run in runs:
        begin, end = ms(run.begin), ms(now if run.end is None else run.end)
        for nodes, share in run.shares:
            is_here = machine.instance.node in expand(nodes) and begin <= paid.over
            first, last = max(begin, paid.begin), min(end, ended, paid.end)
            if is_here and first < last:
                yield Use(_name(by, run), first, last, Fraction(share, MICRO))


def _name(by: str, run: Any) -> str:
    name = {"job": run.label or str(run.job), "user": run.user, "account": run.account}[by]
    return name or "(none)"


def _of_clouds(answer: Any, paid: Sequence[tuple[Any, Paid]]) -> Iterator[str]:
    """Machines of one cloud are the cloud's line, to the micro-dollar."""
    expected: defaultdict[str, int] = defaultdict(int)
    for machine, of_machine in paid:
        expected[machine.instance.cloud] += _rounded(of_machine.micro)
    said = {line.key: line.micro for line in answer.lines}
    for name in sorted(expected.keys() | said.keys()):
        if said.get(name, 0) != expected[name]:
            yield f"cost of cloud {name}: {said.get(name, 0)}, the page's rule {expected[name]}"


def _spans(config: Config, now: float, whole: int) -> Iterator[str]:
    """Two spans of time that meet cost as much as both together, wherever a month ends."""
    machines = record_of(config, now).machines
    if any(m.ended_at is not None and m.ended_at < m.instance.launched for m in machines):
        return  # a clock that was set back has them end before they begin
    begun = min((m.instance.launched for m in machines), default=now)
    hour = now - now % HOUR
    for cut in (begun + (now - begun) / 3, begun + (now - begun) * 0.9, hour):
        for by in ("user", "cloud"):
            before = cost(config, by, now, until=cut).micro
            since = cost(config, by, now, since=cut).micro
            if before + since != whole:
                yield f"cost --by {by} until {cut:.3f} {before} and since {since} are not {whole}"
