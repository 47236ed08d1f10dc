"""Defects put into the product on purpose: chaos that does not find them is no chaos."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from slurm_elastic.controller import provision
from slurm_elastic.controller import suspend as suspending
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.daemon import Daemon
from slurm_elastic.ledger import Ledger
from slurm_elastic.policies import cluster, reconcile_rules
from slurm_elastic.store import files


def spending_unlocked(_stage: Any) -> None:
    """Clouds decide at once, each by what is free for itself."""
    Site.spending = lambda _: contextlib.nullcontext()  # type: ignore[method-assign]


def synced_now_and_then(_stage: Any) -> None:
    """As "pragma synchronous = normal": a power cut takes the last commits."""
    real = files._prepare

    def prepare(connection: Any, path: Any, schema: Any) -> None:
        real(connection, path, schema)
        connection.execute("pragma synchronous = normal")

    files._prepare = prepare


def intents_unwritten(_stage: Any) -> None:
    """The cloud is called first."""
    real = Ledger.launched

    def launched(self: Any, generation: str, instances: Any, now: float) -> None:
        spec, request = _specs.pop(generation)
        Ledger.intend.real(self, spec, request, now)  # type: ignore[attr-defined]
        real(self, generation, instances, now)

    def intend(self: Any, spec: Any, request: str, now: float) -> None:
        _specs[spec.generation] = (spec, request)

    intend.real = Ledger.intend  # type: ignore[attr-defined]
    Ledger.intend, Ledger.launched = intend, launched  # type: ignore[method-assign]


_specs: dict[str, tuple[Any, str]] = {}


def one_missing_answer_is_an_end(_stage: Any) -> None:
    """A machine that one list lacks is gone."""
    reconcile_rules._is_overdue = lambda view, machine, patience: machine.misses >= 1


def bought_from_an_unread_cloud(_stage: Any) -> None:
    """Whatever a new ledger lacks."""
    Daemon._unread = lambda *args: ""  # type: ignore[method-assign]


def an_old_suspend_ends_a_new_machine(_stage: Any) -> None:
    """Whatever Slurm says by now, and whenever the machine was bought."""
    suspending.generation_order = lambda generation: 0.0
    suspending.phase = lambda node: None


def ended_without_an_end(_stage: Any) -> None:
    """What was ended stays paid in the books."""
    Ledger.ended = lambda *args: None  # type: ignore[method-assign]


def orphans_stay(_stage: Any) -> None:
    """What Slurm has powered down, and nobody asked to end, stays."""
    real = cluster.repairs
    cluster.repairs = lambda view, patience: tuple(
        action for action in real(view, patience) if "orphan" not in action.kind
    )


def launched_again(_stage: Any) -> None:
    """A launch without an answer is made once more, under another name."""
    real = provision.launch

    def launch(site: Any, spec: Any, request: str, **more: Any) -> Any:
        answer = real(site, spec, request, **more)
        if answer.outcome.value == "in doubt":
            site.ledger.failed(spec.generation, "no answer", site.now())
        return answer

    provision.launch = launch


ALL: dict[str, Callable[[Any], None]] = {
    one.__name__: one
    for one in (
        spending_unlocked, synced_now_and_then, intents_unwritten, one_missing_answer_is_an_end,
        bought_from_an_unread_cloud, an_old_suspend_ends_a_new_machine, ended_without_an_end,
        orphans_stay, launched_again,
    )
}  # fmt: skip
