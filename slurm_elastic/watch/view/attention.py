"""The sentences of ``status`` that somebody has to read first. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from slurm_elastic.base.units import brief, counted
from slurm_elastic.model.finding import CONSOLE, SLURMCTLD
from slurm_elastic.model.protocols import NO_NODE
from slurm_elastic.watch.view.checkpoints import CheckpointsView
from slurm_elastic.watch.view.rows import (
    BreakerView,
    BudgetView,
    DaemonView,
    DirectiveView,
    Level,
    StatusView,
    Told,
)

NO_PROCESS = "there is no such process on this host"
_ORDER = tuple(Level)


def private_note(private: Collection[str]) -> str:
    """The sentence for a viewer who sees only a part."""
    words = ",".join(private)
    return f"Shown is what slurm.conf (PrivateData={words}) lets you see: of your own jobs alone."


def attention(view: StatusView) -> tuple[Told, ...]:
    """Everything that somebody should know before the rest, the worst first."""
    found = [
        *(of_directive(one) for one in view.directives if one.holds),
        *silent_daemon(view.daemon, view.ledger_error),
        *(replace(one, text=_sentence(one.text)) for one in problems(view)),
        *(silent_ckptman(view.checkpoints) if view.checkpoints else ()),
        *unread(view),
        *clouds(view),
        *(paused(breaker) for breaker in view.breakers),
        *stopped(view.budgets),
        *_jobs_in_danger(view.checkpoints),
        *_machines(view),
    ]
    if view.private:
        found.append(Told(level=Level.NOTE, text=private_note(view.private)))
    return tuple(sorted(found, key=lambda one: _ORDER.index(one.level)))


def of_directive(one: DirectiveView) -> Told:
    """An operator's order that holds now, or will: it is meant so, and nothing is broken."""
    return Told(level=Level.WARN if one.holds else Level.NOTE, text=_sentence(one.told))


def silent_daemon(daemon: DaemonView, ledger_error: str | None) -> Iterable[Told]:
    """Says if it only ends machines, or does nothing."""
    if daemon.end_only:
        yield Told(level=Level.LOUD, text=daemon.end_only)
    if daemon.age is None:
        why = "unknown, as the ledger cannot be read" if ledger_error else "has never run"
        do = "" if ledger_error else "systemctl start slurm-elasticd"
        yield Told(level=Level.LOUD, text=f"Daemon: {why}", do=do)
    elif not daemon.alive:
        beat = f"heartbeat {brief(daemon.age)} ago, pid {daemon.pid}"
        if daemon.process_found is False:
            beat += f", and {NO_PROCESS}"
        then = "nothing is launched or suspended; do: systemctl start slurm-elasticd"
        yield Told(level=Level.LOUD, text=f"Daemon: NOT RUNNING ({beat}); {then}")


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
        if not (view.slurm_error and problem.startswith("slurm: ")):  # its present error is told
            yield Told(level=Level.BAD, text=f"last error of {problem}")


def unread(view: StatusView) -> Iterable[Told]:
    """What could not be read, or cannot be true."""
    if view.ledger_error:
        yield Told(level=Level.LOUD, text=f"The ledger cannot be read: {view.ledger_error}")
    if view.slurm_error:
        text = f"Slurm does not answer: {view.slurm_error}"
        yield Told(level=Level.LOUD, text=text, do=SLURMCTLD * (view.slurm_error != NO_NODE))
    if view.clock:
        yield Told(level=Level.LOUD, text=view.clock)


def clouds(view: StatusView) -> Iterable[Told]:
    """Clouds that are not in use, or answer with errors."""
    for cloud in view.clouds:
        if cloud.blocked:
            yield Told(level=Level.WARN, text=f"Not in use: {cloud.blocked}")
        if cloud.problem:
            ago = f" ({brief(view.at - cloud.checked)} ago)" if cloud.checked else ""
            text = f"Cloud {cloud.name} answers with an error{ago}: {cloud.problem}"
            yield Told(level=Level.BAD, text=text)


def paused(breaker: BreakerView) -> Told:
    """A pool whose machines fail."""
    how = breaker.how.replace("were ", "was ", 1) if breaker.failures == 1 else breaker.how
    row = "" if breaker.failures == 1 else " in a row"
    failed = f"{counted(breaker.failures, 'machine')}{row} {how}"
    if breaker.left is None:
        text = f"Pool {breaker.pool}: {failed} (paused at {breaker.limit})"
    elif breaker.left > 0:
        then = f"{brief(breaker.left)} more, or until `slurm-elastic clear {breaker.pool}`"
        text = f"Pool {breaker.pool} IS PAUSED: {failed}; {then}"
        return Told(level=Level.LOUD, text=text, do="" if "; do: " in breaker.how else CONSOLE)
    else:
        text = f"Pool {breaker.pool} is on trial with one machine: {failed}"
    return Told(level=Level.WARN, text=text)


def stopped(budgets: Iterable[BudgetView]) -> Iterable[Told]:
    """Budgets that are used up."""
    for budget in budgets:
        if budget.stop:
            text = f"No machine is started for {payer(budget)}: {budget.stop}"
            yield Told(level=Level.WARN, text=text)


def payer(budget: BudgetView) -> str:
    """Whose budget it is."""
    if budget.account:
        return f"account {budget.account}"
    if budget.user:
        return f"user {budget.user}"
    return f"cloud {budget.cloud}" if budget.cloud else "the cluster"


def _jobs_in_danger(view: CheckpointsView | None) -> Iterable[Told]:
    if view is None:
        return
    for threat in view.threats:
        left = "" if threat.left is None else f" in {brief(threat.left)}"
        text = f"Node {threat.node} is taken away{left}: {threat.kind}, {threat.reason}"
        yield Told(level=Level.BAD, text=text)
    for job in view.unsavable:
        text = f"Job {job.label} cannot be saved by {job.method}: {job.why}"
        yield Told(level=Level.WARN, text=text)


def _machines(view: StatusView) -> Iterable[Told]:
    groups: dict[str, list[str]] = {}
    for machine in view.instances:
        if not machine.calm:
            groups.setdefault(machine.next, []).append(machine.node or machine.id)
    for follows, names in list(groups.items())[:_CAUSES]:
        text = ", ".join(names[:_NAMED])
        if len(names) > _NAMED:
            text = f"{len(names)} machines ({text} and {len(names) - _NAMED} more)"
        yield Told(level=Level.WARN, text=f"{text}: {follows}")
    if rest := list(groups.values())[_CAUSES:]:
        count = sum(map(len, rest))
        yield Told(level=Level.WARN, text=f"{count} more machines need attention")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


_NAMED, _CAUSES = 3, 4  # how many machines are named for a cause, and how many causes are told
