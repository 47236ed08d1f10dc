"""No method forgets the lock of what threads share: see guarded.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from guarded import GUARDS
from ledger_cases import spec

from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.orders import Asked, Orders
from slurm_elastic.ckptman.site import JobList
from slurm_elastic.ckptstate import CheckpointState
from slurm_elastic.ckptstate.orders import SaveOrder
from slurm_elastic.controller.requeues import PATIENCE, Requeues
from slurm_elastic.errors import SlurmError, UnsettledError
from slurm_elastic.ledger import Health, Ledger
from slurm_elastic.ledger.enduring import Enduring
from slurm_elastic.model_slurm import SlurmJob
from slurm_elastic.providers.base.unconfirmed import UnconfirmedOrders
from slurm_elastic.slurm.fake import FakeSlurm

PENDING = SlurmJob(id=7, states=frozenset({"PENDING"}), restarts=1, start=1e9)


pytestmark = pytest.mark.usefixtures("guarded")


@pytest.mark.parametrize("kind", [Ledger, Enduring])
def test_the_ledger(tmp_path: Path, kind: type[Ledger]) -> None:
    ledger = kind(tmp_path / "ledger.db")
    ledger.refresh()
    with ledger.together():
        ledger.intend(spec(), "r1", 5.0)
    assert len(ledger.current()[1]) == 1
    assert len(ledger.state().launches) == 1
    ledger.failed(spec().generation, "no", 6.0)
    ledger.beat("somebody", 1.0, 1)
    ledger.check()
    ledger.give_up(OSError("broken"))
    ledger.compact(7.0)
    assert ledger.decisions("n1") == ()
    ledger.report_health(Health(name="slurm", checked=1.0))
    ledger.close()


def test_what_is_written_together(tmp_path: Path) -> None:
    state = CheckpointState(tmp_path / "checkpoints.db")
    state.count({"a": 1.0, "b": 2.0})
    state.refresh()
    state.close()


def test_requeues(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.lift_requeue(8, 0, 1.0)
    requeues, slurm = Requeues(), FakeSlurm(jobs=[PENDING])
    requeues.expect(PENDING, 0.0, ["n1"])
    requeues.recall(ledger, 0.0)
    requeues.recall_left(ledger, 2 * PATIENCE, 0.0)
    requeues.tick(slurm, ledger, 5.0, 1.0)
    slurm.fail_next.append(SlurmError(("x",), 1, "no"))
    requeues.expect(PENDING, 0.0, ["n1"])
    with pytest.raises(SlurmError):
        requeues.tick(slurm, ledger, 5.0, 1.0)
    requeues.tick(slurm, ledger, 5.0, 2 * PATIENCE)
    ledger.close()


def test_a_postponed_requeue(tmp_path: Path) -> None:
    class Refusing(FakeSlurm):
        def start_now(self, job: int) -> None:
            raise SlurmError(("scontrol",), 1, "no")

    ledger = Ledger(tmp_path / "ledger.db")
    requeues = Requeues()
    before = SlurmJob(id=7, states=frozenset({"RUNNING"}), nodes=("n1",))
    requeues.expect(before, 0.0, ["n1"])
    asked = 0
    for clock in range(1, 300):
        try:
            requeues.tick(Refusing(jobs=[PENDING]), ledger, 5.0, float(clock))
        except SlurmError:
            asked += 1
    assert asked
    ledger.close()


def test_unconfirmed_orders() -> None:
    orders = UnconfirmedOrders("c", 60.0, lambda: 5.0)
    one = spec()
    with orders.order(one.generation, one.nodes, lambda _: False):
        pass
    with pytest.raises(UnsettledError):
        orders.require(one, one.nodes)
    orders.listed(one.generation, one.nodes)
    orders.require(one, one.nodes)


def test_orders_of_people() -> None:
    orders = Orders(lambda: None)
    asked = Asked("h", SaveOrder(job=1))
    assert not orders.tell(asked)
    assert orders.waiting() == [asked]
    orders.begun(asked)
    orders.carried(asked)
    assert orders.tell(asked)
    orders.forget([asked])


def test_work_of_a_job() -> None:
    crew = KeyedExecutor(0)
    assert crew.submit(1, (0.0, 0.0), lambda: None)
    assert not crew.busy(1)
    crew.close()


def test_the_list_of_jobs() -> None:
    jobs = JobList(FakeSlurm(jobs=[PENDING]), fresh=-1.0)
    assert jobs.look(7) is not None
    assert jobs.anew(7) is not None


def test_each_guard_names_what_is_there() -> None:
    assert len({(guard.of, name) for guard in GUARDS for name in guard.attributes}) > 10
