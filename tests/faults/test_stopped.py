"""Each fault x stop and start: no orphan, no double, no job that waits for ever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from slurm_elastic.model.cluster import InstanceState
from slurm_elastic.testing.bench import Bench, open_bench
from slurm_elastic.testing.matrix import STRUCK, healed, nothing_left, strikes
from tests.faults.fake_bed import Fake


class Keeping(Fake):
    """Its pool keeps stopped machines; ``alive`` are those that run."""

    pool = replace(Fake.pool, stopped=2, stopped_price=0.01)
    CALLS = {**Fake.CALLS, "stop": "stop", "start": "start"}  # noqa: RUF012

    def alive(self) -> set[str]:
        machines = self.account.machines
        return {i for i in super().alive() if machines[i].instance.state is InstanceState.RUNNING}

    def strike(self, fault: str, call: str) -> bool:
        assert self.provider is not None
        if fault in ("capacity", "quota") and call == "start":
            self.provider.fail_next(self.ERRORS[fault], 10, "start")
            return True
        if fault in ("reset after", "time-out") and call in ("stop", "start"):
            self.provider.lose_answer_next()
            return True
        return super().strike(fault, call)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with open_bench(lambda _: Keeping()) as made:
        yield made


def job(bench: Bench, number: int) -> None:
    bench.slurm.submit(number, bench.nodes, len(bench.nodes))


def served(bench: Bench) -> bool:
    return bench.running() and bench.settled()


def off(bench: Bench) -> bool:
    return bench.settled() and not bench.bed.alive()


@pytest.mark.parametrize("fault", STRUCK)
@pytest.mark.parametrize("call", ["stop", "start"])
def test_no_orphan_no_double_and_no_lost_job(bench: Bench, call: str, fault: str) -> None:
    job(bench, 1)
    bench.until(lambda: served(bench), "the first job")
    possible = call == "start" or strikes(bench, fault, "stop")
    bench.slurm.finish(1)
    bench.advance(100)
    if call == "stop" and possible:
        healed(bench, fault, "stop")
    bench.until(lambda: off(bench), "the end of the first job's machines")
    possible = possible and (call == "stop" or strikes(bench, fault, "start"))
    job(bench, 2)
    bench.advance(40)
    if call == "start" and possible:
        healed(bench, fault, "start")
    bench.until(lambda: served(bench), "the second job")
    assert bench.census.doubles == []
    assert bench.census.nobodys == set()
    assert max(len(some) for some in bench.census.made.values()) <= 2
    kept = {m.instance.id for m in bench.ledger.stops.machines()}
    assert kept.isdisjoint(bench.bed.alive())
    nothing_left(bench)
    assert accounted_for(bench) == []


def accounted_for(bench: Bench) -> Sequence[str]:
    """Machines of the cloud, running or stopped, that the ledger has nowhere."""
    bed = bench.bed
    assert isinstance(bed, Keeping)
    known = {m.instance.id for m in (*bench.ledger.machines.live(), *bench.ledger.stops.machines())}
    return sorted(bed.account.alive() - known)
