"""``StatusView`` as rich tables: all columns from 120 characters on, fewer below, and lines of
text instead of rows below 72. Rows that need attention come first if not all rows fit.

All text is passed as ``Text``: rich would read the brackets of hostlists as markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace
from rich.console import Console, Group, RenderableType
from rich.text import Text

from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.local_time import moment
from slurm_elastic.base.units import brief, counted
from slurm_elastic.cli.jobs.ckpt_tables import life, saved, threatened
from slurm_elastic.cli.operate.columns import Rows
from slurm_elastic.cli.operate.status_lines import sums
from slurm_elastic.cli.operate.status_machines import machines
from slurm_elastic.cli.operate.status_screen import NARROW, SHORT, WIDE, Screen
from slurm_elastic.cli.reports.shortened import hosts, more, offers, with_rest, words
from slurm_elastic.model.exclusion import CAPACITY
from slurm_elastic.policies.launch.grouping import braces
from slurm_elastic.watch.view.attention import (
    directive_notice,
    end_only,
    kept,
    other_clouds,
    paused,
    payer,
    private_note,
    problems,
    reason_or_reference,
    silent_daemon,
    stopped,
    unendable,
    unhelped_jobs,
    unread,
)
from slurm_elastic.watch.view.checkpoints import CheckpointsView
from slurm_elastic.watch.view.next_action import (
    BOOTING,
    DOWN,
    DRAINED,
    HELD,
    IDLE,
    IN_USE,
    POWERED_DOWN,
)
from slurm_elastic.watch.view.rows import (
    AttentionLevel,
    BudgetView,
    CloudRow,
    CoolDownView,
    LaunchView,
    NodesView,
    PoolView,
    StatusNotice,
    StatusView,
    TotalView,
)

_COLUMNS = (IN_USE, IDLE, BOOTING, HELD, POWERED_DOWN)
_OTHER = "other"
_LOUD = "bold white on red"
_BAD, _WARN, _GOOD, _DIM = "bold red", "yellow", "green", "dim"
_STYLES = dict(zip(AttentionLevel, (_LOUD, _BAD, _WARN, _DIM), strict=True))
_CALM_STATES = (IN_USE, IDLE, BOOTING)


def render(view: StatusView, console: Console, screen: Screen = SHORT) -> None:
    """Print the view, shortened to the screen."""
    time_text = moment(view.at)
    only = f", {view.part} alone" if view.part else ""
    console.print(
        Text.assemble("Cluster ", (view.cluster, "bold"), only, (f"   {time_text}", _DIM))
    )
    for block in _blocks(view, console.width, screen):
        console.print()
        console.print(block)


def _blocks(view: StatusView, width: int, screen: Screen) -> Iterable[RenderableType]:
    wide = width >= WIDE
    top = screen.rows(width)
    # First line of all: machines that we cannot end cost money until a person acts.
    yield from map(_notice_line, unendable(view))
    if view.directives:
        yield Group(*(_notice_line(directive_notice(d)) for d in view.directives))
    services = _services(view)
    # Before the tables, because a low screen shows only the beginning.
    yield Group(services, *sums(view, wide=wide))
    yield from _alarms(view, top)
    if view.checkpoints:
        ckpt = view.checkpoints
        yield from threatened(replace(ckpt, moves=ckpt.moves[:top], unsavable=ckpt.unsavable[:top]))
    yield _clouds_small(view) if width < NARROW else _clouds(view, top, wide=wide)
    if groups := _groups_to_show(view, top):
        title = "Nodes not powered down" if view.ledger_error else "Nodes in other states"
        yield _nodes(groups, title, top, wide=wide)
    if view.instances:
        yield machines(view.instances, width, screen)
    elif not view.ledger_error:
        yield _no_machine(sum(pool.stopped for pool in view.pools))
    yield from _not_now(view, top, wide=wide)
    if view.checkpoints:
        yield from _saves(view.checkpoints, top)
    if view.budgets:
        yield _budgets(view.budgets)
    if view.totals and wide:
        yield _totals(view.totals)


def _no_machine(kept: int) -> Text:
    if not kept:
        return Text("No machine is paid.", style=_DIM)
    stopped_text = "1 stopped machine is" if kept == 1 else f"{kept} stopped machines are"
    return Text(f"No machine runs; {stopped_text} paid for.")


def _not_now(view: StatusView, top: int | None, *, wide: bool) -> Iterable[RenderableType]:
    """Tables of launches without an answer, of offers that cool down, and of held nodes."""
    if view.launches:
        table = _launches(view.launches[:top], top, wide=wide)
        yield with_rest(table, more(view.launches, top))
    if view.cool_downs:
        groups = _by_reason(view.cool_downs)
        yield with_rest(_cool_downs(groups[:top], view.attention), more(groups, top))
    if view.holds:
        yield with_rest(_holds(view, top, wide=wide), more(view.holds, top))


def _saves(view: CheckpointsView, top: int | None) -> Iterable[RenderableType]:
    if view.saved:
        yield saved(replace(view, saved=view.saved[:top]))
    if top is not None and len(view.saved) > top:
        yield Text("more of them: slurm-elastic ckpt list", style=_DIM)


def _alarms(view: StatusView, top: int | None) -> Iterable[RenderableType]:
    """The lines above the tables: a person has to act, or sees only a part of the cluster."""
    if view.private:
        yield Text(private_note(view.private), style=_WARN)
    notices = (
        *unread(view), *other_clouds(view), *map(paused, view.breakers), *stopped(view.budgets),
        *unhelped_jobs(view.unhelped),
    )  # fmt: skip
    yield from map(_notice_line, notices)
    if rows := tuple(kept(view)):
        yield with_rest(Group(*map(_notice_line, rows[:top])), more(rows, top))


def _notice_line(notice: StatusNotice) -> Text:
    return words(notice.whole, _STYLES[notice.level])


def _services(view: StatusView) -> RenderableType:
    daemon = view.daemon
    lines = [] if view.head is None else [words(view.head.told)]
    lines += [
        _notice_line(o) for o in (*end_only(daemon), *silent_daemon(daemon, view.ledger_error))
    ]
    if daemon.alive and daemon.age is not None:
        beat = f", heartbeat {brief(daemon.age)} ago, pid {daemon.pid}"
        lines.append(Text.assemble("Daemon: ", ("alive", _GOOD), beat))
    if waiting := daemon.pending_requests:
        noun = "request of Slurm waits" if waiting == 1 else "requests of Slurm wait"
        lines.append(Text(f"  {waiting} {noun}", style="" if daemon.alive else _WARN))
    lines += [words(f"  {trouble.text}", _BAD) for trouble in problems(view)]
    if view.checkpoints:
        lines.append(life(view.checkpoints))
    return Group(*lines)


def _parts(view: StatusView) -> Iterable[tuple[CloudRow | None, PoolView | None]]:
    """Rows as (cloud, pool). A cloud with one pool is one row; other clouds precede their pools."""
    for cloud in view.clouds:
        pools = [pool for pool in view.pools if pool.cloud == cloud.name]
        if len(pools) == 1:
            yield cloud, pools[0]
            continue
        yield cloud, None
        yield from ((None, pool) for pool in pools)


def _clouds(view: StatusView, top: int | None, *, wide: bool) -> RenderableType:
    names = ("Cloud", "Location", "Pool", "Nodes") if wide else ("Cloud", "Pool")
    states = _columns(view)
    right = (*states.values(), "Paid/max", "$/h now", *(("$/h worst/max",) if wide else ()))
    table = Rows(
        "", *names, *right, right=right, otherwise=lambda: _clouds_small(view),
        gives=("Location", "Nodes", ("Pool", 12), ("Cloud", 12), "$/h now"),
    )  # fmt: skip
    is_known = view.ledger_error is None
    if site_nodes := view.site_nodes:
        here = [
            "site",
            "own nodes",
            counted(site_nodes.count, "node"),
            hosts(site_nodes.nodes, top).plain,
        ]
        prices = ["-"] * (2 if wide else 1)
        shown = here if wide else [here[0], here[2]]
        table.add(*shown, *_state_cells(site_nodes.states, states), "-", *prices)
    for cloud, pool in _parts(view):
        here = [cloud.name if cloud else "", pool.name if pool else ""]
        if wide:
            here.insert(1, cloud.location if cloud else "")
            here.append(hosts(pool.nodes, top).plain if pool else "")
        money = [Text(dollars(cloud.price_now) if is_known else "-") if cloud else Text()]
        if cloud and wide:
            limit = "-" if cloud.price_limit is None else f"{cloud.price_limit:.2f}"
            money.append(Text(f"{cloud.price_worst:.2f}/{limit}" if is_known else f"-/{limit}"))
        cells = _state_cells((cloud or pool).states, states)  # type: ignore[union-attr]
        table.add(*here, *cells, _paid(cloud, pool, is_known=is_known), *money)
    return table


def _clouds_small(view: StatusView) -> RenderableType:
    lines = []
    is_known = view.ledger_error is None
    if site_nodes := view.site_nodes:
        lines.append(Text.assemble(("site", "bold"), f": {counted(site_nodes.count, 'own node')}"))
        lines.append(Text(f"  {_states_text(site_nodes.states)}"))
    for cloud, pool in _parts(view):
        line = Text.assemble((cloud.name, "bold"), f" ({cloud.location})") if cloud else Text(" ")
        if pool:
            line.append(f" {pool.name}, {pool.nodes}")
        line.append(": ").append(_paid(cloud, pool, is_known=is_known)).append(" paid")
        if cloud:
            line.append(f", {dollars(cloud.price_now) if is_known else '-'} $/h now")
        states_text = _states_text((cloud or pool).states)  # type: ignore[union-attr]
        lines += [line, Text(f"  {states_text}")]
    return Group(*lines)


def _paid(cloud: CloudRow | None, pool: PoolView | None, *, is_known: bool) -> Text:
    """The number of paid machines, and the lower limit of the cloud's and the pool's."""
    both = [limited for limited in (cloud, pool) if limited]
    limit = min((limited.limit for limited in both if limited.limit is not None), default=None)
    text = _out_of(both[0].machines if is_known else None, limit)
    return text.append(f" +{pool.stopped} stopped") if pool and pool.stopped else text


def _states_text(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items()) or "nodes not known"


def _groups_to_show(view: StatusView, top: int | None) -> Sequence[NodesView]:
    """The groups of nodes that are in neither the table of machines nor the table of holds."""
    held = {name for hold in view.holds for name in expand(hold.nodes)}
    rows = view.instances if top is None or len(view.instances) <= top else ()
    follows = {machine.node: machine.next for machine in rows}

    def is_reported(group: NodesView) -> bool:
        names = expand(group.nodes)
        if group.state in _CALM_STATES:
            return not view.ledger_error
        if group.state == HELD and held.issuperset(names):
            return True
        return bool(group.note) and all(group.note in follows.get(name, "") for name in names)

    return [group for group in view.nodes if not is_reported(group)]


def _nodes(
    groups: Sequence[NodesView], title: str, top: int | None, *, wide: bool
) -> RenderableType:
    if top is not None and len(groups) > top:
        groups = sorted(groups, key=lambda group: group.state in _CALM_STATES)
    names = ("State", "Cloud", "Count", "Nodes", "Why")
    table = Rows(title, *names, right=("Count",), wrapped={"Why": 20}, gives=("Cloud",))
    for group in groups[:top]:
        table.add(
            Text(group.state, style=_state_style(group.state)),
            group.cloud,
            str(group.count),
            hosts(group.nodes, top, wide=wide, count=False),
            words(group.note),
        )
    return with_rest(table, more(groups, top))


def _launches(launches: Sequence[LaunchView], top: int | None, *, wide: bool) -> RenderableType:
    names = ("Pool", "Nodes", "Offer", "Since")
    table = Rows("Launches without an answer yet", *names, gives=("Pool", ("Offer", 20)))
    for launch in launches:
        table.add(
            launch.pool,
            hosts(launch.nodes, top, wide=wide),
            launch.offer,
            Text(brief(launch.age), style=_WARN if launch.age > 60 else ""),
        )
    return table


def _by_reason(cool_downs: Sequence[CoolDownView]) -> list[list[CoolDownView]]:
    """Group the cool-downs of the same cause that end at the same time."""
    groups: dict[tuple[object, ...], list[CoolDownView]] = {}
    for cool_down in cool_downs:
        groups.setdefault((cool_down.code, cool_down.reason, brief(cool_down.left)), []).append(
            cool_down
        )
    return list(groups.values())


def _cool_downs(
    groups: Sequence[Sequence[CoolDownView]], notices: Sequence[StatusNotice]
) -> RenderableType:
    names = ("Offer", "Left", "Why")
    table = Rows("Cool-downs: not bought now", *names, wrapped={"Offer": 32, "Why": 20})
    for group in groups:
        cool_down = group[0]
        table.add(
            "; ".join(map(offers, braces(cool_down_of_group.key for cool_down_of_group in group))),
            brief(cool_down.left),
            words(f"{cool_down.code}: {reason_or_reference(cool_down, notices)}"),
        )
    return table


def _holds(view: StatusView, top: int | None, *, wide: bool) -> RenderableType:
    ends = any(hold.kind == CAPACITY for hold in view.holds[:top])
    names = ("Pool", "Nodes", *(("Left",) if ends else ()), "Why")
    table = Rows(
        "Nodes kept from Slurm for now (holds)", *names, wrapped={"Why": 20}, gives=("Pool",)
    )
    for hold in view.holds[:top]:
        left_text = brief(hold.left) if hold.left > 0 else "over"
        if hold.kind != CAPACITY:
            left_text = "-"
        nodes = hosts(hold.nodes, top, wide=wide)
        reason_text = words(reason_or_reference(hold, view.attention))
        table.add(hold.pool, nodes, *((left_text,) if ends else ()), reason_text)
    return table


def _budgets(budgets: Sequence[BudgetView]) -> RenderableType:
    right = ("Today", "Per day", "This month", "Per month")
    table = Rows("Budgets: $ spent, by UTC", "Of", *right, right=right)
    for b in budgets:
        cells = []
        for spent, bound in ((b.day, b.per_day), (b.month, b.per_month)):
            over = bound is not None and spent >= bound
            cells.append(Text(dollars(spent), style=_BAD if over else ""))
            cells.append(Text("-" if bound is None else dollars(bound)))
        table.add(payer(b), *cells)
    return table


def dollars(amount: float) -> str:
    return f"{amount:.4f}" if amount < 10 else f"{amount:.2f}"


def _totals(totals: Sequence[TotalView]) -> RenderableType:
    right = ("Running", "$/h now", "$ so far", "Ended", "$ of ended", "$ in all")
    title = "Cost: running now, and ended in the last 24 hours"
    table = Rows(title, "Market", *right, right=right)
    for t in totals:
        table.add(t.market, *_total_cells(t))
    if len(totals) > 1:
        whole = TotalView(
            market="all",
            machines=sum(t.machines for t in totals),
            price_now=sum(t.price_now for t in totals),
            cost_live=sum(t.cost_live for t in totals),
            cost_ended=sum(t.cost_ended for t in totals),
            ended=sum(t.ended for t in totals),
        )
        table.add(Text("all", style="bold"), *_total_cells(whole))
    return table


def _total_cells(t: TotalView) -> list[Text]:
    return [
        Text(str(t.machines)),
        Text(dollars(t.price_now)),
        Text(dollars(t.cost_live)),
        Text(str(t.ended)),
        Text(dollars(t.cost_ended)),
        Text(dollars(t.cost_live + t.cost_ended), style="bold"),
    ]


def _columns(view: StatusView) -> dict[str, str]:
    """States and the headings of their columns; rare states only if there are such nodes."""
    columns = {IN_USE: "In use", IDLE: "Idle", BOOTING: "Boot", HELD: "Held", POWERED_DOWN: "Off"}
    rows = [cloud.states for cloud in view.clouds]
    if view.site_nodes:
        rows.append(view.site_nodes.states)
    states_present = {state for states in rows for state, count in states.items() if count}
    if HELD not in states_present:
        del columns[HELD]
    others = states_present - columns.keys()
    # A name of its own only for what a person must end, and only where it is the one other state:
    # five columns and one more fit on 80 characters.
    only = next(iter(others)) if len(others) == 1 else ""
    name = {DRAINED: "Drained", DOWN: "Down"}.get(only, "Other")
    return columns | ({_OTHER: name} if others else {})


def _state_cells(states: Mapping[str, int], columns: Iterable[str]) -> Iterable[Text]:
    """The counts for these columns; a dash in each if Slurm did not answer."""
    for state in columns:
        if not states:
            yield Text("-", style=_DIM)
        elif state == _OTHER:
            yield _count(sum(n for name, n in states.items() if name not in _COLUMNS), _WARN)
        else:
            yield _count(states.get(state, 0), _state_style(state))


def _count(number: int, style: str) -> Text:
    return Text(str(number), style=style if number else _DIM)


def _out_of(number: int | None, limit: int | None) -> Text:
    """A count with its limit, such as ``3/10``. ``number`` None: the count is unknown. ``limit``
    None: there is no limit.
    """
    return Text("/".join("-" if value is None else str(value) for value in (number, limit)))


def _state_style(state: str) -> str:
    return {IN_USE: _GOOD, IDLE: "", BOOTING: "cyan", HELD: _WARN, POWERED_DOWN: ""}.get(
        state, _BAD if state == DOWN else _WARN
    )
