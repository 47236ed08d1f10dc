"""The sentences of ``status`` that somebody has to read first. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from slurm_elastic.base.units import brief, counted, money
from slurm_elastic.model.directive import scope_in_words, scope_of_cloud, scope_of_pool
from slurm_elastic.model.exclusion import CAPACITY
from slurm_elastic.model.finding import SLURMCTLD, try_pool
from slurm_elastic.model.memory import UnhelpedJob
from slurm_elastic.model.protocols import NO_NODE
from slurm_elastic.policies.launch.unhelped_words import unhelped_sentence
from slurm_elastic.watch.causes import LEDGER, UNHELPED, is_scope, of_order, told_once
from slurm_elastic.watch.view.checkpoints import CheckpointsView
from slurm_elastic.watch.view.departing import TAKEN, taken
from slurm_elastic.watch.view.kept import GIVEN_UP, REPLACED
from slurm_elastic.watch.view.rows import (
    BreakerView,
    BudgetView,
    CloudView,
    CoolDownView,
    DaemonView,
    DirectiveView,
    HeadView,
    HoldView,
    InstanceView,
    Level,
    StatusView,
    Told,
)

START = "systemctl start slurm-elasticd"
NO_PROCESS = "there is no such process on this host"
_ORDER = tuple(Level)


def private_note(private: Collection[str]) -> str:
    """The sentence for a viewer who sees only a part."""
    words = ",".join(private)
    return f"Shown is what slurm.conf (PrivateData={words}) lets you see: of your own jobs alone."


def attention(view: StatusView) -> tuple[Told, ...]:
    """Everything that somebody should know before the rest, the worst first."""
    found = [
        *unendable(view),
        *(of_directive(one) for one in view.directives if one.holds),
        *without_services(view.head),
        *end_only(view.daemon),
        *unread(view),
        *silent_daemon(view.daemon, view.ledger_error),
        *(replace(one, text=sentence(one.text)) for one in problems(view)),
        *(silent_ckptman(view.checkpoints) if view.checkpoints else ()),
        *other_clouds(view),
        *(paused(breaker) for breaker in view.breakers),
        *stopped(view.budgets),
        *_out_of_machines(view),
        *kept(view),
        *unhelped_jobs(view.unhelped),
        *machines(view.instances),
        *_jobs_in_danger(view),
    ]
    if view.private:
        found.append(Told(level=Level.NOTE, text=private_note(view.private)))
    return tuple(sorted(told_once(found, set()), key=lambda one: _ORDER.index(one.level)))


def reason(row: HoldView | CoolDownView, sentences: Iterable[Told]) -> str:
    """Why, in a table below these sentences: what they tell of a cloud or a pool is only named."""
    if is_scope(row.cause) and any(one.cause == row.cause for one in sentences):
        return f"{scope_in_words(row.cause)}, told above"
    return row.reason


def unhelped_jobs(rows: Sequence[UnhelpedJob]) -> Iterable[Told]:
    """Jobs that wait although machines came up for them."""
    if rows:
        text, do = unhelped_sentence(rows)
        yield Told(level=Level.WARN, text=text, do=do, cause=UNHELPED)


def of_directive(one: DirectiveView) -> Told:
    """An operator's order that holds now, or will: it is meant so, and nothing is broken."""
    level = Level.WARN if one.holds else Level.NOTE
    return Told(level=level, text=sentence(one.told), cause=of_order(one.number))


def without_services(head: HeadView | None) -> Iterable[Told]:
    """Reports that Slurm acts on a head whose services did not follow."""
    if head is not None and head.do:
        text = sentence(head.told)
        yield Told(level=Level.LOUD, text=text, do=head.do)


def end_only(daemon: DaemonView) -> Iterable[Told]:
    """Says if it only ends machines."""
    if trouble := daemon.trouble:
        text = sentence(trouble.finding)
        yield Told(level=Level.LOUD, text=text, do=trouble.remedy, cause=LEDGER)


def silent_daemon(daemon: DaemonView, ledger_error: str | None) -> Iterable[Told]:
    """Says if it does nothing."""
    if daemon.age is None and ledger_error:
        text = "Daemon: unknown, as its records (the ledger) cannot be read"
        yield Told(level=Level.LOUD, text=text, cause=LEDGER)
    elif daemon.age is None:
        yield Told(level=Level.LOUD, text="Daemon: has never run", do=START)
    elif not daemon.alive:
        beat = f"heartbeat {brief(daemon.age)} ago, pid {daemon.pid}"
        if daemon.process_found is False:
            beat += f", and {NO_PROCESS}"
        text = f"Daemon: NOT RUNNING ({beat}); nothing is launched or suspended"
        yield Told(level=Level.LOUD, text=text, do=START)


def silent_ckptman(view: CheckpointsView) -> Iterable[Told]:
    """Says if no job is saved, or if saves are not written down."""
    if view.alive and view.trouble:
        yield Told(level=Level.BAD, text=f"Checkpoints: {view.trouble}")
    elif not view.alive:
        age = "never" if view.age is None else f"{brief(view.age)} ago"
        if view.process_found is False:
            age += f", and {NO_PROCESS}"
        who = "slurm-elastic-ckptman is NOT RUNNING"
        text = f"Checkpoints: {who} (heartbeat {age}); no job is saved"
        yield Told(level=Level.BAD, text=text, do="systemctl start slurm-elastic-ckptman")


def problems(view: StatusView) -> Iterable[Told]:
    """The last answers of Slurm and the clouds that were errors."""
    for problem in view.daemon.problems:
        yield Told(level=Level.BAD, text=f"last error of {problem}")


def unread(view: StatusView) -> Iterable[Told]:
    """What could not be read, or cannot be true."""
    if view.ledger_error:
        text = f"The records of slurm-elasticd (the ledger) cannot be read: {view.ledger_error}"
        do = START if view.daemon.pid is None else ""
        yield Told(level=Level.LOUD, text=text, do=do, cause=LEDGER)
    if view.slurm_error:
        text = f"Slurm does not answer: {view.slurm_error}"
        yield Told(level=Level.LOUD, text=text, do=SLURMCTLD * (view.slurm_error != NO_NODE))
    if view.clock:
        yield Told(level=Level.LOUD, text=view.clock)


def unendable(view: StatusView) -> Iterable[Told]:
    """Clouds with paid machines that cannot be ended until the credentials work."""
    return (_problem(cloud, view.at) for cloud in view.clouds if _is_unendable(cloud))


def other_clouds(view: StatusView) -> Iterable[Told]:
    """Other clouds that are not in use, or answer with errors."""
    for cloud in view.clouds:
        if cloud.blocked:
            yield Told(level=Level.WARN, text=f"Not in use: {cloud.blocked}")
        if cloud.problem and not _is_unendable(cloud):
            yield _problem(cloud, view.at)


def _is_unendable(cloud: CloudView) -> bool:
    return cloud.refused and bool(cloud.unendable)


def _problem(cloud: CloudView, now: float) -> Told:
    """The error of a cloud; paid machines that cannot be ended for it are said first."""
    ago = f" ({brief(now - cloud.checked)} ago)" if cloud.checked else ""
    how = "refuses the credentials" if cloud.refused else "answers with an error"
    text = f"cloud {cloud.name} {how}{ago}: {cloud.problem}"
    unendable = f"{cloud.unendable}; " if cloud.unendable else ""
    return Told(
        level=Level.LOUD if _is_unendable(cloud) else Level.BAD,
        text=sentence(f"{unendable}{text}"),
        do=cloud.do,
        cause=scope_of_cloud(cloud.name),
    )


def paused(breaker: BreakerView) -> Told:
    """A pool whose machines fail."""
    how = breaker.how
    if breaker.node_reason:
        were = "was" if breaker.failures == 1 else "were"
        how = f"{were} taken out of service by Slurm: {breaker.node_reason}"
    row = "" if breaker.failures == 1 else " in a row"
    paid = f" ({money(breaker.paid)} paid)" if breaker.paid else ""
    failed = f"{counted(breaker.failures, 'machine')}{row} {how}{paid}"
    cause = scope_of_pool(breaker.pool)
    if breaker.left is None:
        text = f"Pool {breaker.pool}: {failed}; it is paused at {breaker.limit} in a row"
        do = breaker.remedy or try_pool(breaker.pool)
        return Told(level=Level.WARN, text=text, do=do, cause=cause)
    if breaker.left > 0:
        then = f"{brief(breaker.left)} more, or until `slurm-elastic clear {breaker.pool}`"
        text = f"Pool {breaker.pool} IS PAUSED: {failed}; {then}"
        do = breaker.remedy or try_pool(breaker.pool)
        return Told(level=Level.LOUD, text=text, do=do, cause=cause)
    text = f"Pool {breaker.pool} is on trial with one machine: {failed}"
    return Told(level=Level.WARN, text=text, do=breaker.remedy, cause=cause)


def stopped(budgets: Iterable[BudgetView]) -> Iterable[Told]:
    """Budgets that are used up."""
    for budget in budgets:
        if budget.stop:
            text = f"No machine is started for {payer(budget)}: {budget.stop}"
            yield Told(level=Level.WARN, text=text)


def _out_of_machines(view: StatusView) -> Iterable[Told]:
    """Pools of which no offer is left while jobs wait for them."""
    jobs = view.queue.jobs if view.queue else ()
    partition_of = {cloud.name: cloud.partition for cloud in view.clouds}
    lasting = {hold.pool: hold for hold in view.holds if hold.kind == CAPACITY}
    for pool in view.pools:
        mine = [job for job in jobs if partition_of[pool.cloud] in job.partitions]
        count = sum(one.tasks for one in mine if one.why)
        if count and (hold := lasting.get(pool.name)):
            waits = "1 job waits" if count == 1 else f"{count} jobs wait"
            text = f"Pool {pool.name} gets no machine, and {waits} for it: {pool.shut}"
            yield Told(level=Level.WARN, text=text, cause=hold.cause)


def kept(view: StatusView) -> Iterable[Told]:
    """Jobs, partitions and nodes that Slurm or a person keeps from starting or from jobs."""
    for one in view.kept:
        if one.kind in (REPLACED, GIVEN_UP):
            continue  # their machines' rows report them
        level = Level.WARN if one.stuck else Level.NOTE
        yield Told(level=level, text=sentence(one.text), do=one.do)


def payer(budget: BudgetView) -> str:
    """Whose budget it is."""
    if budget.account:
        return f"account {budget.account}"
    if budget.user:
        return f"user {budget.user}"
    return f"cloud {budget.cloud}" if budget.cloud else "the cluster"


def _jobs_in_danger(view: StatusView) -> Iterable[Told]:
    told = {machine.node for machine in view.instances if machine.next.startswith(TAKEN)}
    for threat in view.checkpoints.threats if view.checkpoints else ():
        if threat.node not in told:
            why = threat.reason or f"told by {threat.source}"
            yield Told(level=Level.BAD, text=f"{threat.node}: {taken(threat)}, {why}")
    for job in view.checkpoints.unsavable if view.checkpoints else ():
        text = f"Job {job.label} cannot be saved by {job.method}: {job.why}"
        yield Told(level=Level.WARN, text=text)


def machines(instances: Iterable[InstanceView]) -> Iterable[Told]:
    """Those that need somebody, by what for."""
    groups: dict[str, list[str]] = {}
    for machine in instances:
        if not machine.calm:
            groups.setdefault(machine.next, []).append(machine.node or machine.id)
    causes = sorted(groups.items(), key=lambda one: not one[0].startswith(TAKEN))
    for follows, names in causes[:_CAUSES]:
        level = Level.BAD if follows.startswith(TAKEN) else Level.WARN
        text = ", ".join(names[:_NAMED])
        if len(names) > _NAMED:
            text = f"{len(names)} machines ({text} and {len(names) - _NAMED} more)"
        yield Told(level=level, text=f"{text}: {follows}")
    if rest := causes[_CAUSES:]:
        count = sum(len(names) for _, names in rest)
        yield Told(level=Level.WARN, text=f"{count} more machines need attention")


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


_NAMED, _CAUSES = 3, 4  # how many machines are named for a cause, and how many causes are told
