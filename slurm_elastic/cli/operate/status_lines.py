"""The sums of ``status``, a line each: machines, jobs, and cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

from slurm_elastic.base.units import brief, counted, money
from slurm_elastic.watch.view.queue import NEVER, QueueView
from slurm_elastic.watch.view.rows import SiteView, StatusView, TotalView

_WARN = "yellow"
MAX_RESERVED = 4  # reservations with a line of their own


def sums(view: StatusView, *, wide: bool) -> Iterable[Text]:
    """The lines above the tables. A wide screen has a table of the cost instead of its line."""
    if view.site and not view.ledger_error:
        yield _machines(view.site, view)
    if view.queue:
        yield _jobs(view.queue, _whose_jobs(view))
    if view.totals and not wide:
        yield _cost(view.totals)
    for row in view.reserved[:MAX_RESERVED]:
        yield Text(f"Reserved: {row.text}", style="" if row.used else _WARN)
    if (hidden := len(view.reserved) - MAX_RESERVED) > 0:
        yield Text(f"and {counted(hidden, 'more reservation')}: --json", style="dim")


def _machines(site: SiteView, view: StatusView) -> Text:
    count = f"{site.machines}" if site.limit is None else f"{site.machines} of at most {site.limit}"
    worst = f"at worst {money(site.price_worst)}/h"
    if site.price_limit is not None:
        worst += f" of at most {money(site.price_limit)}/h"
    whose = "Machines of the whole cluster" if view.part else "Machines"
    text = Text(f"{whose}: {count}; {money(site.price_now)}/h now, {worst}")
    loud = sum(not i.calm for i in view.instances)
    if loud:
        here = " here" if view.part else ""
        need = "need" if loud > 1 else "needs"
        text.append(f"; {loud}{here} {need} attention", _WARN)
    return text


def _whose_jobs(view: StatusView) -> str:
    if "jobs" in view.private:
        return "Your jobs"
    return "Jobs of the whole cluster" if view.part else "Jobs"


def _jobs(queue: QueueView, whose: str) -> Text:
    """The numbers of running and waiting jobs, and the reasons for which jobs wait."""
    started = queue.running - queue.booting
    line = f"{whose}: {started} {'runs' if started == 1 else 'run'}"
    if queue.booting:
        line += f", {queue.booting} {'boots' if queue.booting == 1 else 'boot'}"
    if not queue.waiting:
        return Text(f"{line}, none waits")
    line += f", {queue.waiting} {'waits' if queue.waiting == 1 else 'wait'}"
    if queue.oldest is not None:
        line += (
            f", the longest {brief(queue.oldest)}"
            if queue.waiting > 1
            else f" {brief(queue.oldest)}"
        )
    text = Text(f"{line}: ")
    for number, (phrase, count) in enumerate(queue.waits_for.items()):
        text.append(", " if number else "").append(f"{count} {phrase}", _WARN * (phrase == NEVER))
    return text


def _cost(totals: Sequence[TotalView]) -> Text:
    """The sums of the table of cost, in a line."""
    live, ended = sum(t.cost_live for t in totals), sum(t.cost_ended for t in totals)
    return Text(f"Cost: {money(live)} for running machines, {money(ended)} for those ended in 24 h")
