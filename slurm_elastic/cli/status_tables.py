"""``StatusView`` as rich tables; one set of columns from 120 characters on, a narrower below, and
machines line by line below 72. A table has as many rows as fit, what needs attention first.

All text goes in as ``Text``: hostlists have brackets, which rich would read as markup.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from slurm_elastic.base.hostlist import expand
from slurm_elastic.cli.ckpt_tables import life, saved, threatened, titled_table
from slurm_elastic.cli.shortened import hosts, more, with_rest, words
from slurm_elastic.cli.status_machines import NARROW, WIDE, machines
from slurm_elastic.policies.launch.grouping import braces
from slurm_elastic.watch.view.attention import (
    clouds,
    of_directive,
    paused,
    payer,
    private_note,
    problems,
    silent_daemon,
    stopped,
    unread,
)
from slurm_elastic.watch.view.checkpoints import CheckpointsView
from slurm_elastic.watch.view.next_action import (
    BOOTING,
    DOWN,
    HELD,
    IDLE,
    IN_USE,
    POWERED_DOWN,
    brief,
)
from slurm_elastic.watch.view.rows import (
    BudgetView,
    CoolDownView,
    HoldView,
    InstanceView,
    LaunchView,
    Level,
    NodesView,
    SiteView,
    StatusView,
    Told,
    TotalView,
)

TOP_WIDE, TOP_NARROW, TOP_SMALL = 10, 8, 5
_COLUMNS = (IN_USE, IDLE, BOOTING, HELD, POWERED_DOWN)
_LOUD = "bold white on red"
_BAD, _WARN, _GOOD, _DIM = "bold red", "yellow", "green", "dim"
_STYLES = {Level.LOUD: _LOUD, Level.BAD: _BAD, Level.WARN: _WARN, Level.NOTE: _DIM}
_CALM_STATES = (IN_USE, IDLE, BOOTING)


class Screen(Struct, frozen=True, kw_only=True):
    """How much of it: ``top`` rows a table (None: as many as fit), or the ``whole``; machines in
    the order of ``sort`` (one of SORTS; None: by node).
    """

    top: int | None = None
    whole: bool = False
    sort: str | None = None

    def rows(self, width: int) -> int | None:
        """At most so many a table; None: all."""
        fit = TOP_WIDE if width >= WIDE else TOP_NARROW if width >= NARROW else TOP_SMALL
        return None if self.whole else self.top or fit


SHORT = Screen()


def render(view: StatusView, console: Console, screen: Screen = SHORT) -> None:
    """Print everything, or the most important of it."""
    console.print(_header(view))
    for block in _blocks(view, console.width, screen):
        console.print()
        console.print(block)


def _blocks(view: StatusView, width: int, screen: Screen) -> Iterable[RenderableType]:
    wide = width >= WIDE
    top = screen.rows(width)
    if view.directives:
        yield Group(*(_told(of_directive(d)) for d in view.directives))
    yield _services(view)
    if view.site and not view.ledger_error:
        yield _summary(view.site, view.instances)
    yield from _alarms(view)
    if view.checkpoints:
        ckpt = view.checkpoints
        yield from threatened(replace(ckpt, moves=ckpt.moves[:top], unsavable=ckpt.unsavable[:top]))
    small = width < NARROW
    yield _clouds_small(view) if small else _clouds(view, wide)
    yield _pools_small(view) if small else _pools(view, wide, top)
    if groups := _told_once(view):
        yield _nodes(groups, top, wide=wide)
    if view.instances:
        yield machines(view.instances, width, top, screen.sort)
    elif not view.ledger_error:
        yield _no_machine(sum(pool.stopped for pool in view.pools))
    yield from _not_now(view, top, wide=wide)
    if view.checkpoints:
        yield from _saves(view.checkpoints, top)
    if view.budgets:
        yield _budgets(view.budgets)
    if view.totals:
        yield _totals_small(view.totals) if small else _totals(view.totals)


def _no_machine(kept: int) -> Text:
    if not kept:
        return Text("No machine is paid.", style=_DIM)
    told = "1 stopped machine is" if kept == 1 else f"{kept} stopped machines are"
    return Text(f"No machine runs; {told} paid for.")


def _not_now(view: StatusView, top: int | None, *, wide: bool) -> Iterable[RenderableType]:
    """Tables of launches without an answer, and of offers that are not used for a time."""
    if view.launches:
        table = _launches(view.launches[:top], top, wide=wide)
        yield with_rest(table, more(view.launches, top))
    if view.cool_downs:
        groups = _by_reason(view.cool_downs)
        yield with_rest(_cool_downs(groups[:top]), more(groups, top))
    if view.holds:
        yield with_rest(_holds(view.holds[:top], top, wide=wide), more(view.holds, top))


def _saves(view: CheckpointsView, top: int | None) -> Iterable[RenderableType]:
    if view.saved:
        yield saved(replace(view, saved=view.saved[:top]))
    if top is not None and max(len(view.saved), len(view.moves), len(view.unsavable)) > top:
        yield Text("more of them: slurm-elastic ckpt list", style=_DIM)


def _alarms(view: StatusView) -> Iterable[Text]:
    """Above the tables: somebody has to do something, or sees a part only."""
    if view.private:
        yield Text(private_note(view.private), style=_WARN)
    told = (*unread(view), *clouds(view), *map(paused, view.breakers), *stopped(view.budgets))
    yield from map(_told, told)


def _told(one: Told) -> Text:
    return words(one.text, _STYLES[one.level])


def _header(view: StatusView) -> Text:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(view.at))
    return Text.assemble(("Cluster ", ""), (view.cluster, "bold"), (f"   {at}", _DIM))


def _services(view: StatusView) -> RenderableType:
    daemon = view.daemon
    lines = [_told(one) for one in silent_daemon(daemon, view.ledger_error)]
    if daemon.alive and daemon.age is not None:
        beat = f", heartbeat {brief(daemon.age)} ago, pid {daemon.pid}"
        lines.append(Text.assemble("Daemon: ", ("alive", _GOOD), beat))
    if waiting := daemon.pending_requests:
        noun = "request waits" if waiting == 1 else "requests wait"
        style = "" if daemon.alive else _WARN
        lines.append(Text(f"  {waiting} {noun} in the spool", style=style))
    lines += [words(f"  {one.text}", _BAD) for one in problems(view)]
    if view.checkpoints:
        lines.append(life(view.checkpoints))
    return Group(*lines)


def _clouds(view: StatusView, wide: bool) -> RenderableType:
    table = titled_table("Clouds", "Cloud", "Location")
    if wide:
        table.add_column("Partition")
        table.add_column("Provider")
    _state_columns(table)
    table.add_column("Paid/max", justify="right")
    table.add_column("$/h now", justify="right")
    if wide:
        table.add_column("$/h worst/max", justify="right")
    known = view.ledger_error is None
    for cloud in view.clouds:
        row = [Text(cloud.name), Text(cloud.location)]
        if wide:
            row += [Text(cloud.partition), Text(cloud.provider)]
        row += _state_cells(cloud.states, cloud.nodes)
        row += [
            _of(cloud.machines if known else None, cloud.limit),
            Text(dollars(cloud.price_now) if known else "-"),
        ]
        if wide:
            worst = f"{cloud.price_worst:.2f}" if known else "-"
            limit = "-" if cloud.price_limit is None else f"{cloud.price_limit:.2f}"
            row.append(Text(f"{worst}/{limit}"))
        table.add_row(*row)
    return table


def _clouds_small(view: StatusView) -> RenderableType:
    lines = [Text("Clouds", style="bold")]
    known = view.ledger_error is None
    for c in view.clouds:
        paid = _of(c.machines if known else None, c.limit)
        now = dollars(c.price_now) if known else "-"
        lines.append(
            Text.assemble((c.name, "bold"), f" ({c.location}): {paid} paid, {now} $/h now")
        )
        lines.append(Text(f"  {_told_states(c.states)}"))
    return Group(*lines)


def _pools_small(view: StatusView) -> RenderableType:
    lines = [Text("Pools", style="bold")]
    known = view.ledger_error is None
    for p in view.pools:
        paid = _of(p.machines if known else None, p.limit)
        lines.append(Text.assemble((p.name, "bold"), f" of {p.cloud}, {p.nodes}: {paid} paid"))
        lines.append(Text(f"  {_told_states(p.states)}"))
    return Group(*lines)


def _told_states(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items()) or "nodes not known"


def _pools(view: StatusView, wide: bool, top: int | None) -> RenderableType:
    table = titled_table("Pools", "Pool", "Cloud", "Nodes")
    _state_columns(table)
    table.add_column("Paid/max", justify="right")
    if wide:
        table.add_column("Markets")
    for pool in view.pools:
        row = [Text(pool.name), Text(pool.cloud), hosts(pool.nodes, top, wide=wide)]
        machines = pool.machines if view.ledger_error is None else None
        paid = _of(machines, pool.limit)
        if pool.stopped:
            paid = Text(f"{paid} +{pool.stopped} stopped")
        row += [*_state_cells(pool.states, pool.count), paid]
        if wide:
            row.append(Text(" ".join(pool.markets)))
        table.add_row(*row)
    return table


def _told_once(view: StatusView) -> Sequence[NodesView]:
    """The nodes that are not powered down, but for those whose hold is told with its end."""
    held = {name for hold in view.holds for name in expand(hold.nodes)}
    return [
        group for group in view.nodes
        if group.state != HELD or not held.issuperset(expand(group.nodes))
    ]  # fmt: skip


def _nodes(groups: Sequence[NodesView], top: int | None, *, wide: bool) -> RenderableType:
    title = "Nodes not powered down"
    if top is not None and len(groups) > top:
        groups = sorted(groups, key=lambda group: group.state in _CALM_STATES)
    table = titled_table(title, "State", "Cloud", "Count", "Nodes", "Why")
    table.columns[2].justify = "right"
    for group in groups[:top]:
        table.add_row(
            Text(group.state, style=_state_style(group.state)),
            Text(group.cloud),
            Text(str(group.count)),
            hosts(group.nodes, top, wide=wide),
            words(group.note),
        )
    return with_rest(table, more(groups, top))


def _summary(site: SiteView, instances: Sequence[InstanceView]) -> Text:
    count = f"{site.machines} of at most {site.limit}" if site.limit else f"{site.machines}"
    worst = f"at worst ${site.price_worst:.2f}/h"
    if site.price_limit is not None:
        worst += f" of at most ${site.price_limit:.2f}/h"
    text = Text(f"Machines: {count}; ${dollars(site.price_now)}/h now, {worst}")
    loud = sum(not i.calm for i in instances)
    if loud:
        text.append(f"; {loud} need attention" if loud > 1 else "; 1 needs attention", _WARN)
    return text


def _launches(launches: Sequence[LaunchView], top: int | None, *, wide: bool) -> RenderableType:
    table = titled_table("Launches without an answer yet", "Pool", "Nodes", "Offer", "Since")
    for launch in launches:
        table.add_row(
            Text(launch.pool),
            hosts(launch.nodes, top, wide=wide),
            Text(launch.offer),
            Text(brief(launch.age), style=_WARN if launch.age > 60 else ""),
        )
    return table


def _by_reason(cool_downs: Sequence[CoolDownView]) -> list[list[CoolDownView]]:
    """Cool-downs of one cause that end at the same time, together."""
    groups: dict[tuple[object, ...], list[CoolDownView]] = {}
    for one in cool_downs:
        groups.setdefault((one.code, one.reason, one.strikes, brief(one.left)), []).append(one)
    return list(groups.values())


def _cool_downs(groups: Sequence[Sequence[CoolDownView]]) -> RenderableType:
    table = titled_table("Cool-downs: not asked for now", "Offer", "Left", "Strikes", "Why")
    table.columns[0].overflow = "fold"
    for group in groups:
        cool_down = group[0]
        offers = " ".join(braces(one.key for one in group))
        table.add_row(
            Text(offers),
            Text(brief(cool_down.left)),
            Text(str(cool_down.strikes)),
            words(f"{cool_down.code}: {cool_down.reason}"),
        )
    return table


def _holds(holds: Sequence[HoldView], top: int | None, *, wide: bool) -> RenderableType:
    table = titled_table("Holds: kept from Slurm", "Pool", "Nodes", "Left", "Why")
    for hold in holds:
        left = brief(hold.left) if hold.left > 0 else "over"
        if hold.kind != "capacity":
            left = "-"
        nodes = hosts(hold.nodes, top, wide=wide)
        table.add_row(Text(hold.pool), nodes, Text(left), words(hold.reason))
    return table


def _budgets(budgets: Sequence[BudgetView]) -> RenderableType:
    table = titled_table("Budgets: $ spent, by UTC", "Of")
    for name in ("Today", "Of", "This month", "Of"):
        table.add_column(name, justify="right")
    for b in budgets:
        cells = []
        for spent, bound in ((b.day, b.per_day), (b.month, b.per_month)):
            over = bound is not None and spent >= bound
            cells.append(Text(f"{spent:.4f}", style=_BAD if over else ""))
            cells.append(Text("-" if bound is None else f"{bound:g}"))
        table.add_row(Text(payer(b)), *cells)
    return table


def dollars(amount: float) -> str:
    return f"{amount:.4f}" if amount < 10 else f"{amount:.2f}"


def _totals(totals: Sequence[TotalView]) -> RenderableType:
    table = titled_table("Cost: running now, and ended in the last 24 hours", "Market")
    for name in ("Running", "$/h now", "$ so far", "Ended", "$ of ended", "$ in all"):
        table.add_column(name, justify="right")
    for t in totals:
        table.add_row(t.market, *_total_cells(t))
    if len(totals) > 1:
        whole = TotalView(
            market="all",
            machines=sum(t.machines for t in totals),
            price_now=sum(t.price_now for t in totals),
            cost_live=sum(t.cost_live for t in totals),
            cost_ended=sum(t.cost_ended for t in totals),
            ended=sum(t.ended for t in totals),
        )
        table.add_section()
        table.add_row(Text("all", style="bold"), *_total_cells(whole))
    return table


def _totals_small(totals: Sequence[TotalView]) -> RenderableType:
    lines = [Text("Cost: running now, and ended in the last 24 hours", style="bold")]
    for t in totals:
        running = f"{t.machines} at {dollars(t.price_now)} $/h, {dollars(t.cost_live)} $ so far"
        lines.append(Text(f"{t.market}: {running}; {t.ended} ended, {dollars(t.cost_ended)} $"))
    return Group(*lines)


def _total_cells(t: TotalView) -> list[Text]:
    return [
        Text(str(t.machines)),
        Text(dollars(t.price_now)),
        Text(dollars(t.cost_live)),
        Text(str(t.ended)),
        Text(dollars(t.cost_ended)),
        Text(dollars(t.cost_live + t.cost_ended), style="bold"),
    ]


def _state_columns(table: Table) -> None:
    for name in ("In use", "Idle", "Boot", "Held", "Off", "Other"):
        table.add_column(name, justify="right", no_wrap=True)


def _state_cells(states: Mapping[str, int], nodes: int) -> list[Text]:
    """Counts under the fixed columns; a dash everywhere when Slurm did not answer."""
    if not states:
        return [Text("-", style=_DIM)] * (len(_COLUMNS) + 1) if nodes else []
    cells = [_count(states.get(state, 0), _state_style(state)) for state in _COLUMNS]
    other = sum(count for state, count in states.items() if state not in _COLUMNS)
    return [*cells, _count(other, _WARN)]


def _count(number: int, style: str) -> Text:
    return Text(str(number), style=style if number else _DIM)


def _of(number: int | None, limit: int | None) -> Text:
    """``number`` None: not known; ``limit`` None: there is none."""
    return Text("/".join("-" if one is None else str(one) for one in (number, limit)))


def _state_style(state: str) -> str:
    return {IN_USE: _GOOD, IDLE: "", BOOTING: "cyan", HELD: _WARN, POWERED_DOWN: ""}.get(
        state, _BAD if state == DOWN else _WARN
    )
