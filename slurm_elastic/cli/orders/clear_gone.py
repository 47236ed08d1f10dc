"""``slurm-elastic clear --gone``: an operator confirms that machines of a former cloud are gone."""

from __future__ import annotations

from collections.abc import Sequence, Set

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.units import counted
from slurm_elastic.config import Config
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.causes.machine_ends import CountedAsGone
from slurm_elastic.state.ledger import Decision, Launch, Ledger, Machine


def gone(
    config: Config,
    ledger: Ledger,
    subjects: Sequence[str],
    now: float,
    uid: int,
    *,
    dry: bool = False,
) -> tuple[str, ...]:
    """Count these machines and open launches (or all of these clouds) as gone, because the user
    ``uid`` says so; with ``dry`` only list them.

    Returns one line for each. Raises ConfigError for a subject of a configured cloud and for an
    unknown one. If the cloud is configured again and still has such a machine, we adopt it.
    """
    clouds = {cloud.name for cloud in config.clouds}
    # Stopped machines count, too: their disks cost money.
    live = (*ledger.machines.live(), *ledger.stops.machines())
    machines = [m for m in live if m.instance.cloud not in clouds]
    launches = [row for row in ledger.launches.open() if row.cloud not in clouds]
    seen_by_daemon = clouds | {m.instance.id for m in live if m.instance.cloud in clouds}
    _check(subjects, _names(machines, launches), seen_by_daemon)
    meant = set(subjects)
    machines = [m for m in machines if meant & {m.instance.id, m.instance.cloud}]
    launches = [row for row in launches if meant & {row.generation, row.cloud}]
    lines = (*(_machine(m) for m in machines), *(_launch(row) for row in launches))
    if dry:
        return lines
    cause = CountedAsGone(uid=uid)
    nodes = [m.instance.node for m in machines] + [n for row in launches for n in row.nodes]
    nodes_changed = tuple(dict.fromkeys(n for n in nodes if n))
    record = Quoted(text=f"{cause}: {'; '.join(lines)}")
    # Together, because a refusal must mean that nothing changed.
    with ledger.together():
        for machine in machines:
            ledger.machines.record_end(machine.instance.cloud, [machine.instance.id], cause, now)
        for row in launches:
            ledger.launches.record_failure(row.generation, str(cause), now)
        ledger.decisions.record(
            Decision(
                at=now, correlation="clear", kind="cleared", subjects=nodes_changed, cause=record
            )
        )
    return lines


def _names(machines: Sequence[Machine], launches: Sequence[Launch]) -> set[str]:
    of_machines = {name for m in machines for name in (m.instance.id, m.instance.cloud)}
    return of_machines | {name for row in launches for name in (row.generation, row.cloud)}


def _check(subjects: Sequence[str], names: Set[str], seen_by_daemon: Set[str]) -> None:
    for subject in subjects:
        if subject in names:
            continue
        if subject in seen_by_daemon:
            raise ConfigError(
                f"{subject!r} belongs to a configured cloud: the daemon sees in the cloud's list "
                "which machines are gone; you need to do nothing"
            )
        choices = ", ".join(sorted(names)) or "none"
        raise ConfigError(
            f"{subject!r} is no machine, launch or cloud that has left the configuration; "
            f"choose from: {choices}"
        )


def _machine(machine: Machine) -> str:
    i = machine.instance
    return f"machine {i.id} of cloud {i.cloud}, node {i.node or 'unknown'}"


def _launch(row: Launch) -> str:
    return f"launch {row.generation} of cloud {row.cloud}, {counted(len(row.nodes), 'node')}"
