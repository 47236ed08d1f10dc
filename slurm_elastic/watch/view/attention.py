"""The notices that ``status`` shows above its tables. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from slurm_elastic.base.processes import service_remedies
from slurm_elastic.base.units import brief, counted, money
from slurm_elastic.model.cluster import NoticeKind
from slurm_elastic.model.directive import scope_in_words, scope_of_cloud, scope_of_pool
from slurm_elastic.model.exclusion import CAPACITY
from slurm_elastic.model.finding import try_pool
from slurm_elastic.model.memory import UnhelpedJob
from slurm_elastic.model.protocols import NO_NODE
from slurm_elastic.policies.launch.unhelped_words import unhelped_sentence
from slurm_elastic.watch.causes import LEDGER, UNHELPED, cause_of_order, is_scope, once_per_cause
from slurm_elastic.watch.view.checkpoints import CheckpointsView
from slurm_elastic.watch.view.departing import TAKEN, taken_phrase
from slurm_elastic.watch.view.kept import GIVEN_UP, REPLACED
from slurm_elastic.watch.view.rows import (
    AttentionLevel,
    BreakerView,
    BudgetView,
    CloudRow,
    CoolDownView,
    DaemonView,
    DirectiveView,
    HeadView,
    HoldView,
    InstanceView,
    StatusNotice,
    StatusView,
)

NO_PROCESS = "there is no such process on this host"
_ORDER = tuple(AttentionLevel)
_MAX_NAMES = 3  # machines that a notice names
_MAX_STEPS = 4  # next steps that get a notice of their own


def private_note(private: Collection[str]) -> str:
    """Return the sentence for a user who sees only a part of the cluster."""
    options = ",".join(private)
    return f"slurm.conf (PrivateData={options}) lets you see only what belongs to your own jobs."


def with_broken_file(view: StatusView, trouble: str) -> StatusView:
    """The view with a notice in front, if the file of the configuration is broken: the view is
    then of the configuration before the change. ``trouble``: what is wrong with the file, or "".
    """
    if not trouble:
        return view
    notice = StatusNotice(
        level=AttentionLevel.BAD,
        text=f"The configuration file is wrong, so no service can start again: {trouble}",
        do="correct the file; what is shown is by the file before its last change",
    )
    return replace(view, attention=(notice, *view.attention))


def attention(view: StatusView) -> tuple[StatusNotice, ...]:
    """Return the notices, the worst first; of one cause only the first."""
    # told_once keeps the first notice of a cause, so the services that see a fault themselves stand
    # before the rows that only suffer from it.
    notices = [
        # First: until a person has helped, every other remedy may be one for the wrong head.
        *(end_only(view.daemon) if is_other_head(view.daemon) else ()),
        *unendable(view),
        *(directive_notice(directive) for directive in view.directives if directive.holds),
        *without_services(view.head),
        *(() if is_other_head(view.daemon) else end_only(view.daemon)),
        *unread(view),
        *silent_daemon(view.daemon, view.ledger_error),
        *(replace(problem, text=sentence(problem.text)) for problem in problems(view)),
        *(silent_ckptman(view.checkpoints) if view.checkpoints else ()),
        *unread_saves(view),
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
        notices.append(StatusNotice(level=AttentionLevel.NOTE, text=private_note(view.private)))
    unique_notices = once_per_cause(notices, set())
    return tuple(sorted(unique_notices, key=lambda notice: _ORDER.index(notice.level)))


def reason_or_reference(row: HoldView | CoolDownView, notices: Iterable[StatusNotice]) -> str:
    """Return the reason of a row, or a reference if a notice above reports that cloud or pool."""
    if is_scope(row.cause) and any(notice.cause == row.cause for notice in notices):
        return f"{scope_in_words(row.cause)}, see above"
    return row.reason


def unhelped_jobs(rows: Sequence[UnhelpedJob]) -> Iterable[StatusNotice]:
    """Report jobs that still wait although machines came up for them."""
    if rows:
        text, do = unhelped_sentence(rows)
        yield StatusNotice(level=AttentionLevel.WARN, text=text, do=do, cause=UNHELPED)


def directive_notice(directive: DirectiveView) -> StatusNotice:
    """Report an operator's order that holds now or will hold. It is intended: nothing is broken."""
    level = AttentionLevel.WARN if directive.holds else AttentionLevel.NOTE
    return StatusNotice(
        level=level, text=sentence(directive.told), cause=cause_of_order(directive.number)
    )


def without_services(head: HeadView | None) -> Iterable[StatusNotice]:
    """Report that Slurm acts on a head to which our services did not follow."""
    if head is not None and head.do:
        text = sentence(head.told)
        yield StatusNotice(level=AttentionLevel.LOUD, text=text, do=head.do)


def is_other_head(daemon: DaemonView) -> bool:
    """Whether another head works for this cluster, too."""
    return daemon.trouble is not None and daemon.trouble.is_other_head


def end_only(daemon: DaemonView) -> Iterable[StatusNotice]:
    """Report that the daemon only ends machines, or that another head works."""
    if trouble := daemon.trouble:
        text, cause = sentence(trouble.finding), "" if trouble.is_other_head else LEDGER
        yield StatusNotice(level=AttentionLevel.LOUD, text=text, do=trouble.remedy, cause=cause)


def silent_daemon(daemon: DaemonView, ledger_error: str | None) -> Iterable[StatusNotice]:
    """Report that the daemon has never run, does not run, or that this is unknown."""
    if daemon.age is None and ledger_error:
        text = "Daemon: unknown, as its records (the ledger) cannot be read"
        yield StatusNotice(level=AttentionLevel.LOUD, text=text, cause=LEDGER)
    elif daemon.age is None:
        yield StatusNotice(
            level=AttentionLevel.LOUD,
            text="Daemon: has never run",
            do=service_remedies.start("slurm-elasticd"),
        )
    elif not daemon.alive:
        beat = f"heartbeat {brief(daemon.age)} ago, pid {daemon.pid}"
        if daemon.process_found is False:
            beat += f", and {NO_PROCESS}"
        text = f"Daemon: NOT RUNNING ({beat}); nothing is launched or suspended"
        yield StatusNotice(
            level=AttentionLevel.LOUD, text=text, do=service_remedies.start("slurm-elasticd")
        )


def silent_ckptman(view: CheckpointsView) -> Iterable[StatusNotice]:
    """Report that no job is saved, or that saves are not recorded."""
    if view.alive and view.trouble:
        yield StatusNotice(level=AttentionLevel.BAD, text=f"Checkpoints: {view.trouble}")
    elif not view.alive:
        age = "never" if view.age is None else f"{brief(view.age)} ago"
        if view.process_found is False:
            age += f", and {NO_PROCESS}"
        service_state = "slurm-elastic-ckptman is NOT RUNNING"
        text = f"Checkpoints: {service_state} (heartbeat {age}); no job is saved"
        yield StatusNotice(
            level=AttentionLevel.BAD, text=text, do=service_remedies.start("slurm-elastic-ckptman")
        )


def unread_saves(view: StatusView) -> Iterable[StatusNotice]:
    """Report that the records of saves cannot be read, so that no save is shown."""
    if view.checkpoints_error:
        text = f"Checkpoints: their records cannot be read: {view.checkpoints_error}"
        do = "slurm-elastic doctor --quick"
        yield StatusNotice(level=AttentionLevel.BAD, text=text, do=do)


def problems(view: StatusView) -> Iterable[StatusNotice]:
    """Report the last errors of Slurm and of other services."""
    for problem in view.daemon.problems:
        yield StatusNotice(level=AttentionLevel.BAD, text=f"last error of {problem}")


def unread(view: StatusView) -> Iterable[StatusNotice]:
    """Report a ledger or a Slurm that cannot be read, and a clock that cannot be right."""
    if view.ledger_error:
        text = f"The records of slurm-elasticd (the ledger) cannot be read: {view.ledger_error}"
        do = service_remedies.start("slurm-elasticd") if view.daemon.pid is None else ""
        yield StatusNotice(level=AttentionLevel.LOUD, text=text, do=do, cause=LEDGER)
    if view.slurm_error:
        text = f"Slurm does not answer: {view.slurm_error}"
        yield StatusNotice(
            level=AttentionLevel.LOUD,
            text=text,
            do=service_remedies.slurmctld_state() * (view.slurm_error != NO_NODE),
        )
    if view.clock:
        yield StatusNotice(level=AttentionLevel.LOUD, text=view.clock)


def unendable(view: StatusView) -> Iterable[StatusNotice]:
    """Report clouds with paid machines that cannot be ended until the credentials work."""
    return (_problem(cloud, view.at) for cloud in view.clouds if _is_unendable(cloud))


def other_clouds(view: StatusView) -> Iterable[StatusNotice]:
    """Report other clouds: not in use, or with errors."""
    for cloud in view.clouds:
        if cloud.blocked:
            yield StatusNotice(level=AttentionLevel.WARN, text=f"Not in use: {cloud.blocked}")
        if cloud.problem and not _is_unendable(cloud):
            yield _problem(cloud, view.at)


def _is_unendable(cloud: CloudRow) -> bool:
    return (cloud.refused or cloud.unopened) and bool(cloud.unendable)


def _problem(cloud: CloudRow, now: float) -> StatusNotice:
    """Report the error of a cloud; machines that cannot be ended come first in the text."""
    ago = f" ({brief(now - cloud.checked)} ago)" if cloud.checked else ""
    how = "refuses the credentials" if cloud.refused else "answers with an error"
    if cloud.unopened:
        how = "cannot be opened on this host"
    text = f"cloud {cloud.name} {how}{ago}: {cloud.problem}"
    unendable = f"{cloud.unendable}; " if cloud.unendable else ""
    return StatusNotice(
        level=AttentionLevel.LOUD if _is_unendable(cloud) else AttentionLevel.BAD,
        text=sentence(f"{unendable}{text}"),
        do=cloud.do,
        cause=scope_of_cloud(cloud.name),
    )


def paused(breaker: BreakerView) -> StatusNotice:
    """Report a pool whose machines fail."""
    in_a_row = "" if breaker.failures == 1 else " in a row"
    paid = f" ({money(breaker.paid)} paid)" if breaker.paid else ""
    console = f"; its console ended with: {breaker.console}" if breaker.console else ""
    failed = f"{counted(breaker.failures, 'machine')}{in_a_row} {breaker.how}{paid}{console}"
    cause = scope_of_pool(breaker.pool)
    if breaker.left is None:
        text = f"Pool {breaker.pool}: {failed}; it is paused at {breaker.limit} in a row"
        do = breaker.remedy or try_pool(breaker.pool)
        return StatusNotice(level=AttentionLevel.WARN, text=text, do=do, cause=cause)
    if breaker.left > 0:
        end_of_pause = f"{brief(breaker.left)} more, or until `slurm-elastic clear {breaker.pool}`"
        text = f"Pool {breaker.pool} IS PAUSED: {failed}; {end_of_pause}"
        do = breaker.remedy or try_pool(breaker.pool)
        return StatusNotice(level=AttentionLevel.LOUD, text=text, do=do, cause=cause)
    text = f"Pool {breaker.pool} is on trial with one machine: {failed}"
    return StatusNotice(level=AttentionLevel.WARN, text=text, do=breaker.remedy, cause=cause)


def stopped(budgets: Iterable[BudgetView]) -> Iterable[StatusNotice]:
    """Report spent budgets."""
    for budget in budgets:
        if budget.stop:
            text = f"No machine is started for {payer(budget)}: {budget.stop}"
            do = "wait for the next day or month (UTC), or raise the budget"
            yield StatusNotice(level=AttentionLevel.WARN, text=text, do=do)


def _out_of_machines(view: StatusView) -> Iterable[StatusNotice]:
    """Report pools that no offer serves while jobs wait for them."""
    waits_for_pool = view.queue.waits_for_pool if view.queue else {}
    capacity_hold_of = {hold.pool: hold for hold in view.holds if hold.kind == CAPACITY}
    for pool in view.pools:
        count = waits_for_pool.get(pool.name, 0)
        # The pool still starts machines if only some of its nodes are held.
        if count and pool.shut and (hold := capacity_hold_of.get(pool.name)):
            waits = "1 job waits" if count == 1 else f"{count} jobs wait"
            text = f"Pool {pool.name} gets no machine, and {waits} for it: {pool.shut}"
            yield StatusNotice(level=AttentionLevel.WARN, text=text, cause=hold.cause)


def kept(view: StatusView) -> Iterable[StatusNotice]:
    """Report jobs, partitions and nodes that Slurm or a person keeps from running."""
    for row in view.kept:
        if row.kind in (REPLACED, GIVEN_UP):
            continue  # their machines' rows report them
        level = AttentionLevel.WARN if row.stuck else AttentionLevel.NOTE
        yield StatusNotice(level=level, text=sentence(row.text), do=row.do)


def payer(budget: BudgetView) -> str:
    """Return in words whose budget it is."""
    if budget.account:
        return f"account {budget.account}"
    if budget.user:
        return f"user {budget.user}"
    return f"cloud {budget.cloud}" if budget.cloud else "the cluster"


def _jobs_in_danger(view: StatusView) -> Iterable[StatusNotice]:
    reported_nodes = {machine.node for machine in view.instances if machine.next.startswith(TAKEN)}
    for threat in view.checkpoints.threats if view.checkpoints else ():
        # The line of the operator's order reports all its nodes, and nothing is broken.
        if threat.kind == NoticeKind.DEPARTURE:
            continue
        if threat.node not in reported_nodes:
            reason_text = threat.reason or f"reported by {threat.source}"
            yield StatusNotice(
                level=AttentionLevel.BAD,
                text=f"{threat.node}: {taken_phrase(threat)}, {reason_text}",
            )
    for job in view.checkpoints.unsavable if view.checkpoints else ():
        text = f"Job {job.label} cannot be saved by {job.method}: {job.why}"
        yield StatusNotice(level=AttentionLevel.WARN, text=text)


def machines(instances: Iterable[InstanceView]) -> Iterable[StatusNotice]:
    """Report the machines that need a person, grouped by their next step."""
    groups: dict[str, list[str]] = {}
    for machine in instances:
        if not machine.calm:
            groups.setdefault(machine.next, []).append(machine.node or machine.id)
    steps = sorted(groups.items(), key=lambda step: not step[0].startswith(TAKEN))
    for next_step, names in steps[:_MAX_STEPS]:
        level = AttentionLevel.BAD if next_step.startswith(TAKEN) else AttentionLevel.WARN
        text = ", ".join(names[:_MAX_NAMES])
        if len(names) > _MAX_NAMES:
            text = f"{len(names)} machines ({text} and {len(names) - _MAX_NAMES} more)"
        yield StatusNotice(level=level, text=f"{text}: {next_step}")
    if other_steps := steps[_MAX_STEPS:]:
        count = sum(len(names) for _, names in other_steps)
        yield StatusNotice(level=AttentionLevel.WARN, text=f"{count} more machines need attention")


def sentence(text: str) -> str:
    """Return the text with a capital first letter."""
    return f"{text[:1].upper()}{text[1:]}"
