"""A simulated site that holds reservations fills them first and pays what its cloud bills: equal to a
second program, and to the sum of its own parts.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_elastic.cli.main import main
from slurm_elastic.config import Config, configfile
from slurm_elastic.simulate import Options, SimulationResult, series, simulate
from slurm_elastic.simulate.outcome import with_reserved_bill
from tests.simulate.reserved_second import HOUR, Contract, bill, lives, on_contract

ORIGIN = 1_800_000_000 - 1_800_000_000 % HOUR + 1000
"""In the middle of a clock hour, so that hours of the history are not the cloud's hours."""
PRICE, BOOT = 0.36, 90
SITE = """
cluster: {{name: demo}}
allow: {{accounts: [physics], max_time: 7d}}
limits: {{dollars_per_hour: 900}}
clouds:
  - name: aws
    provider: aws
    location: public
    region: us-east-1
    image: ami-0123456789abcdef0
    zones: [us-east-1a]
    types: {{c6i.large: {{cpus: 2, memory: 4G, price: {price}}}}}
    reservations:
{reservations}
pools:
  - {{name: p, cloud: aws, nodes: "n[1-99]", cpus: 2, memory: 4G, instance_types: [c6i.large],
     markets: [{markets}]}}
"""


def site(tmp_path: Path, *lines: str, markets: str = "reserved, on-demand") -> Config:
    path = tmp_path / "site.yaml"
    listed = "\n".join(f"      - {{{line}}}" for line in lines)
    path.write_text(SITE.format(price=PRICE, reservations=listed, markets=markets))
    return configfile.load(path)


def moment(second: int) -> str:
    """A second of the history for the configuration."""
    return f'"{datetime.fromtimestamp(ORIGIN + second, UTC):%Y-%m-%dT%H:%M:%SZ}"'


def rows(jobs: list[tuple[int, int]]) -> list[dict[str, object]]:
    return [
        {
            "JobIDRaw": number, "Submit": ORIGIN + submit, "ElapsedRaw": run, "ReqCPUS": 2,
            "State": "COMPLETED", "User": "ann", "Account": "physics",
        }
        for number, (submit, run) in enumerate(jobs, 1)
    ]  # fmt: skip


def drawn(seed: int, count: int = 60) -> list[tuple[int, int]]:
    """Jobs over half a day, the first at second 0."""
    chance = random.Random(seed)
    submits = sorted(chance.sample(range(1, 12 * HOUR), count - 1))
    return [(submit, chance.randint(60, 3 * HOUR)) for submit in (0, *submits)]


def run(
    jobs: list[tuple[int, int]], config: Config, policy: str = "individual"
) -> SimulationResult:
    return simulate(rows(jobs), config, policy, Options(boot=((1, float(BOOT)),), whole_nodes=True))


KINDS = {
    "year": (
        "name: year, type: c6i.large, count: 4, upfront: 20, price: 0.1, from: {0}, to: {1}",
        Contract(0, 0, count=4, upfront=20.0, hourly=0.1),
    ),
    "when used": (
        "name: light, type: c6i.large, count: 6, upfront: 9, price: 0.2, always: false, from: {0}, to: {1}",
        Contract(0, 0, count=6, upfront=9.0, hourly=0.2, always=False),
    ),
    "zone": (
        "name: zonal, type: c6i.large, count: 3, zone: us-east-1a, price: 0.15, from: {0}, to: {1}",
        Contract(0, 0, count=3, hourly=0.15),
    ),
    "plan": (
        "name: plan, kind: savings-plan, commit: 1.1, families: {{c6i: 0.4}}, from: {0}, to: {1}",
        Contract(0, 0, commit=1.1, discount=0.4),
    ),
}
TERMS = [(-2 * HOUR, 40 * HOUR), (3 * HOUR + 77, 40 * HOUR), (-HOUR, 5 * HOUR + 13), (7000, 30_000)]

WHOLE_HOURS = [
    (hours * HOUR - 1000, more * HOUR - 1000) for hours, more in ((-9, 40), (3, 40), (-2, 6))
]
"""Terms from one clock hour to another. The second program adds machines up, so it cannot say which
part of a clock hour one contract has left to another.
"""


def held(kind: str, term: tuple[int, int]) -> tuple[str, Contract]:
    """The line of the configuration, and the same for the second program."""
    line, contract = KINDS[kind]
    begin, end = term
    return (
        line.format(moment(begin), moment(end)),
        replace(contract, begin=ORIGIN + begin, end=ORIGIN + end),
    )


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_bill_is_that_of_a_second_program(
    kind: str, term: tuple[int, int], tmp_path: Path
) -> None:
    line, contract = held(kind, term)
    for seed in range(3):
        jobs = drawn(seed)
        result = run(jobs, site(tmp_path, line))
        machines = lives(jobs, BOOT)
        total = result.totals[0]
        assert total["cost"] == pytest.approx(bill(machines, PRICE, [contract], ORIGIN), abs=1e-3)
        assert total["mean_wait"] == BOOT
        if contract.count:
            (pool,) = result.runs[0][1].pools
            launched = sum(
                count
                for batch, _, count, _ in pool.leases.rows()
                if pool.sold[pool.batch_offer[batch]].offer.held is not None
            )
            assert launched == on_contract(machines, contract, ORIGIN)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kinds=st.lists(st.sampled_from(["year", "plan"]), min_size=2, max_size=2, unique=True),
    terms=st.lists(st.sampled_from(WHOLE_HOURS), min_size=2, max_size=2),
)
def test_several_reservations_together(
    seed: int,
    kinds: list[str],
    terms: list[tuple[int, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    jobs = drawn(seed, 30)
    lines, contracts = zip(*map(held, kinds, terms), strict=True)
    result = run(jobs, site(tmp_path_factory.mktemp("s"), *lines))
    expected = bill(lives(jobs, BOOT), PRICE, list(contracts), ORIGIN)
    assert result.totals[0]["cost"] == pytest.approx(expected, abs=1e-3)


def test_two_reservations_of_one_type_are_both_filled(tmp_path: Path) -> None:
    first = "name: a, type: c6i.large, count: 1, price: 0.1, from: {0}, to: {1}"
    more = "name: b, type: c6i.large, count: 2, price: 0.2, from: {0}, to: {1}"
    term = moment(-HOUR), moment(40 * HOUR)
    result = run([(0, HOUR)] * 4, site(tmp_path, first.format(*term), more.format(*term)))
    (pool,) = result.runs[0][1].pools
    names = [
        (pool.sold[pool.batch_offer[batch]].offer.held or pool.pool).name
        for batch, _, count, _ in pool.leases.rows()
        for _ in range(count)
    ]
    assert sorted(names) == ["a", "b", "b", "p"]


def test_machines_that_are_used_again_are_billed_by_the_same_rule(tmp_path: Path) -> None:
    """And an on-demand pool gets the discount of reserved instances, too, as EC2 bills."""
    line, contract = held("year", TERMS[0])
    for markets in ("reserved, on-demand", "on-demand"):
        config = site(tmp_path, line, markets=markets)
        result = run(drawn(7), config, "on_demand+idle(600)")
        (pool,) = result.runs[0][1].pools
        machines = [
            (pool.batch_start[batch], end)
            for batch, end, count, _ in pool.leases.rows()
            for _ in range(count)
        ]
        expected = bill(machines, PRICE, [contract], ORIGIN)
        assert result.totals[0]["cost"] == pytest.approx(expected, abs=1e-3)


def test_the_parts_sum_to_the_bill(tmp_path: Path) -> None:
    line, contract = held("year", TERMS[0])
    result = run(drawn(3), site(tmp_path, line))
    (total,), (pool,) = result.totals, result.pools
    assert total["cost"] == pytest.approx(total["on_demand"] + total["spot"] + total["reserved"])
    assert total["reserved"] == pytest.approx(pool["reserved"] + total["unused"])
    assert pool["on_demand"] == total["on_demand"]
    assert total["unused"] > 0
    # A machine that was bought on demand while all were in use is covered later.
    assert total["on_demand"] < total["cost"] - contract.fixed()
    # The curve of the report ends at the same sum.
    assert series.cost(result.runs[0][1])[-1][1] == pytest.approx(total["cost"], abs=1e-3)


def test_other_parts_of_the_cost_stay(tmp_path: Path) -> None:
    result = run(drawn(3), site(tmp_path, held("year", TERMS[0])[0]))
    outcome = result.runs[0][1]
    cost = outcome.figures.cost
    outcome.figures = msgspec.structs.replace(
        outcome.figures, cost=outcome.figures.on_demand + 5.0, spot=0.0
    )
    with_reserved_bill(outcome, outcome.unused_reservations)
    assert outcome.figures.cost == pytest.approx(cost + 5.0)


def test_without_public_machines_no_reservation_is_paid(tmp_path: Path) -> None:
    config = site(tmp_path, held("year", TERMS[0])[0])
    result = simulate(rows(drawn(1)), config, "none", Options(static=(20, 2)))
    assert result.totals[0]["cost"] == 0


def test_a_reservation_of_another_time_begins_with_the_history(tmp_path: Path) -> None:
    now, later = (
        "name: year, type: c6i.large, count: 4, upfront: 20, from: {}, to: {}".format(
            *map(moment, term)
        )
        for term in ((0, 400 * HOUR), (4000 * HOUR, 4400 * HOUR))
    )
    shifted = run(drawn(2), site(tmp_path, later))
    assert shifted.totals[0] == run(drawn(2), site(tmp_path, now)).totals[0]
    (note,) = (text for text in shifted.notes if "reservation" in text)
    assert note.startswith("reservation year of cloud aws begins with the history here")


def test_a_block_is_paid_from_its_begin_on_and_not_left_out(tmp_path: Path) -> None:
    line = (
        f"name: gpu, kind: capacity-block, id: cr-0123456789abcdef0, zone: us-east-1a, count: 2,"
        f" upfront: 9, type: c6i.large, from: {moment(0)}, to: {moment(24 * HOUR)}"
    )
    result = run(drawn(2), site(tmp_path, line))
    (pool,) = result.runs[0][1].pools
    last_s = max(*result.runs[0][1].ends, *(end for _, end, _, _ in pool.leases.rows()))
    assert result.totals[0]["reserved"] == pytest.approx(9 * last_s / (24 * HOUR), abs=1e-4)
    assert not [note for note in result.notes if "left out" in note]


def test_the_table_has_a_column_for_reservations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site(tmp_path, held("year", TERMS[0])[0])
    file = tmp_path / "h.swf"
    file.write_text("1 0 0 3600 2 -1 -1 2 3600 -1 1 1 1 1 1 1 -1 -1\n")
    words = ["--config", str(tmp_path / "site.yaml"), "simulate", "--workload", str(file)]
    assert main(words) == 0
    assert "reserved" in capsys.readouterr().out
