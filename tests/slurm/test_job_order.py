"""The submit filter orders a job's clouds by its cost, as policies/launch/pool_order.py does.

The calculation is written twice, in Lua for slurmctld and in Python for slurm-elasticd. Here both
get the same 10,000 jobs, in each Lua that is installed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Cluster, Config, PoolSettings, domain_pools
from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.copying import Traffic
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.job_data import counted_data
from slurm_elastic.policies.launch.pool_order import (
    DEFAULT_RUN_S,
    JobShape,
    PoolTerms,
    PricedRoom,
    TrafficTerms,
    cost,
    partition_order,
)
from slurm_elastic.policies.launch.ranking import DEFAULT_KEYS
from slurm_elastic.policies.launch.reorder import reorders
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.slurm.hooks.order_file import FILE, MAX_AGE_S, text_of
from slurm_elastic.slurm.hooks.submit_filter import FILTER, ranked_pools, render, to_lua
from tests.slurm.test_submit_filter import LUAS, PARTITION, STATIC, listed

SHAPES = 10_000
RANKINGS = (
    DEFAULT_KEYS,
    ("price",),
    ("location", "market", "risk", "waste"),
    ("market", "location", "own", "price"),
)
PRICES = (0.0, 0.01, 0.034, 0.05, 0.1, 0.17, 0.34, 1.7)
NOW = 1_764_000_000
COMMENTS = (
    "", "", "ckpt=criu", "data=120G", "data=1.7T/12.345G", "x;data=333M;y", "data=0.1G/0M", "mydata=5G",
    "data=12", "data=5GB", "data=.5G", "data=5.G", "data=1G/", "data=1G/2G/3G", "data=1.2345G",
    "data=/scratch/set", "note data=7.25G", "data=9999999999G",
)  # fmt: skip


@pytest.fixture(params=LUAS)
def lua(request: pytest.FixtureRequest) -> Callable[[str], str]:
    return LUAS[request.param]


def random_terms(rng: random.Random, number: int, ranking: Sequence[str]) -> PoolTerms:
    is_public = rng.random() < 0.7
    offers = tuple(
        PricedRoom(
            room=rng.randrange(0, 9),
            market=rng.choice(list(Market)),
            price=rng.choice(PRICES),
            lost_share=rng.choice((0.0, 0.0, 0.05, 0.6)),
            max_run_s=rng.choice((math.inf, math.inf, 1800.0, 90000.0)),
        )
        for _ in range(rng.choice((0, 1, 1, 2, 3)))
    )
    on_demand = [o.price for o in offers if o.market is Market.ON_DEMAND and is_public]
    own_keys = {"location": float(is_public), "waste": rng.random(), "own": rng.random() - 0.5}
    return PoolTerms(
        pool=f"pool{number}",
        cloud=f"cloud{number // 2}",
        partition=f"part{number // 2}",
        offers=offers,
        on_demand=min(on_demand, default=math.inf),
        boot_s=rng.choice((0.0, 45.0, 130.5, 600.0)),
        lease_s=rng.choice((1.0, 60.0, 3600.0)),
        keys={name: own_keys[name] for name in ranking if name in own_keys} if offers else {},
        traffic=TrafficTerms(
            price_in=rng.choice((0.0, 0.0, 0.01)),
            price_out=rng.choice((0.0, 0.09, 0.0512)),
            bandwidth=rng.choice((math.inf, 100.0, 733.3)),
        ),
        unavailable=Quoted(text="sold out") if rng.random() < 0.3 or not offers else None,
    )


CASES = """
local lines = {{}}
for _, case in ipairs(cases) do
  local rows, sums = {{}}, {{}}
  local data = data_of(case)
  for _, row in ipairs(case.rows) do
    local pools = {{}}
    for _, one in ipairs(row.pools) do
      local terms = published.pools[one.pool]
      pools[#pools + 1] = {{ terms = terms, machines = one.machines }}
      sums[#sums + 1] = string.format("%.17g", job_cost(terms, one.machines, case.seconds, false, data))
      sums[#sums + 1] = string.format("%.17g", job_cost(terms, one.machines, case.seconds, true, data))
    end
    rows[#rows + 1] = {{ name = row.name, pools = pools }}
  end
  local names = {{}}
  for i, item in ipairs(order_partitions(rows, published.keys, case.seconds, data)) do
    names[i] = item.name
  end
  print(table.concat(names, ",") .. " " .. table.concat(sums, ","))
end
"""


def cases_of(
    table: Sequence[PoolTerms], jobs: Sequence[JobShape], comments: Sequence[str]
) -> list[dict[str, Any]]:
    cases = []
    for job, comment in zip(jobs, comments, strict=True):
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in table:
            if row.pool in job.machines:
                rows.setdefault(row.partition, []).append(
                    {"pool": row.pool, "machines": job.machines[row.pool]}
                )
        cases.append(
            {
                "seconds": job.seconds,
                "comment": comment,
                "rows": [{"name": name, "pools": pools} for name, pools in rows.items()],
            }
        )
    return cases


def expected(table: Sequence[PoolTerms], job: JobShape, ranking: Sequence[str]) -> str:
    names = [row.terms.partition for row in partition_order(job, table, ranking)]
    # In the order of the cases: by partition.
    partitions = dict.fromkeys(row.partition for row in table)
    rows = [
        row for name in partitions for row in table
        if row.partition == name and row.pool in job.machines
    ]  # fmt: skip
    sums = [cost(job, row, with_risk=risk) for row in rows for risk in (False, True)]
    return f"{','.join(names)} {','.join(format(value, '.17g') for value in sums)}"


def test_lua_and_python_agree_over_many_jobs(lua: Callable[[str], str], tmp_path: Path) -> None:
    rng = random.Random(53)
    site = Config(
        cluster=Cluster(name="test"),
        clouds=(FakeCloud(name="public", location=Location.PUBLIC, traffic=Traffic(out=0.09)),),
        pools=(
            PoolSettings(
                name="pub", cloud="public", nodes="pub[1-6]", cpus=16, memory=64000,
                real_memory=60000,
            ),
        ),
        limits=Limits(dollars_per_hour=5.0),
    )  # fmt: skip
    source = render(site, domain_pools(site, expand))[FILTER]
    compared = 0
    for number in range(20):
        ranking = RANKINGS[number % len(RANKINGS)]
        table = [random_terms(rng, n, ranking) for n in range(rng.randrange(2, 9))]
        comments = [rng.choice(COMMENTS) for _ in range(SHAPES // 20)]
        jobs = [
            JobShape(
                data=counted_data(comment),
                machines={row.pool: rng.randrange(1, 13) for row in table if rng.random() < 0.9},
                seconds=float(rng.choice((60, 600, 3600, 86400, rng.randrange(1, 10**6)))),
            )
            for comment in comments
        ]
        path = tmp_path / FILE
        path.write_text(text_of(table, ranking, NOW))
        lines = lua(
            f"{source}\nlocal published = read_order({to_lua(str(path))}, {NOW})\n"
            f"local cases = {to_lua(cases_of(table, jobs, comments))}\n{CASES.format()}"
        ).splitlines()
        assert [line.rstrip() for line in lines] == [
            expected(table, job, ranking).rstrip() for job in jobs
        ]
        compared += len(lines)
    assert compared == SHAPES


# the whole filter, with the file in its place


def two_clouds(tmp_path: Path) -> Config:
    clouds = tuple(
        FakeCloud(name=name, location=Location.PUBLIC, allow=Who(groups=("staff",)))
        for name in ("dear", "cheap")
    )
    pools = tuple(
        PoolSettings(name=f"{cloud}-pool", cloud=cloud, nodes=f"{cloud}[1-6]", cpus=4, memory=8000,
                     real_memory=7000)
        for cloud in ("dear", "cheap")
    )  # fmt: skip
    return Config(
        cluster=Cluster(name="test"), clouds=clouds, pools=pools,
        limits=Limits(dollars_per_hour=50.0), state_dir=str(tmp_path),
    )  # fmt: skip


def terms(cloud: str, *rows: tuple[int, float], **changes: Any) -> PoolTerms:
    return PoolTerms(
        pool=f"{cloud}-pool", cloud=cloud, partition=cloud,
        offers=tuple(PricedRoom(room=room, market=Market.ON_DEMAND, price=p) for room, p in rows),
        keys={"location": 1.0, "waste": 0.0}, **changes,
    )  # fmt: skip


PARTS = {"static": STATIC, "dear": PARTITION, "cheap": PARTITION}


def filtered(lua: Callable[[str], str], site: Config, now_shift: int = 0, **job: Any) -> str:
    text = render(site, domain_pools(site, expand))[FILTER]
    return listed(lua, job, PARTS, f"os.time = function() return {NOW + now_shift} end\n{text}")


def test_a_job_gets_the_clouds_in_the_order_of_its_cost(
    lua: Callable[[str], str], tmp_path: Path
) -> None:
    site = two_clouds(tmp_path)
    assert filtered(lua, site) == "static,dear,cheap", "no file: the order of the configuration"
    path = site.state / FILE
    table = (terms("dear", (9, 0.9)), terms("cheap", (1, 0.05), (9, 2.0)))
    path.write_text(text_of(table, site.ranking, NOW))
    assert filtered(lua, site) == "static,cheap,dear"
    # Four nodes: one at $0.05 and three at $2 cost more than four at $0.90.
    assert filtered(lua, site, min_nodes=4) == "static,dear,cheap"


def test_a_job_that_must_stay_off_spot_machines_is_ordered_by_the_cost_of_others(
    lua: Callable[[str], str], tmp_path: Path
) -> None:
    site = two_clouds(tmp_path)
    # The clouds have nodes without spot machines, whatever the file says of the other nodes.
    spot = (PricedRoom(room=9, market=Market.SPOT, price=0.05),)
    table = (
        replace(terms("dear"), offers=spot, on_demand=0.9),
        replace(terms("cheap", (9, 0.3)), on_demand=0.3),
    )
    (site.state / FILE).write_text(text_of(table, site.ranking, NOW))
    assert filtered(lua, site) == "static,dear,cheap"
    assert filtered(lua, site, requeue=0) == "static,cheap,dear"
    assert filtered(lua, site, requeue=0, comment="spot=ok") == "static,dear,cheap"
    job = SlurmJob(
        id=1, states=frozenset({"PENDING"}), requeue=False, partitions=("static", "dear", "cheap"),
        node_count=1,
    )  # fmt: skip
    pools = {pool.name: pool for pool in domain_pools(site, expand)}
    orders, nobody = {1: ("dear", "cheap")}, {"dear": (), "cheap": ()}
    (change,) = reorders([job], orders, table, pools, site.ranking, nobody)
    assert change.partitions == ("static", "cheap", "dear")
    anybody = {"dear": ("all",), "cheap": ("all",)}
    assert reorders([job], orders, table, pools, site.ranking, anybody) == []


def test_an_old_or_broken_file_counts_as_absent(lua: Callable[[str], str], tmp_path: Path) -> None:
    site = two_clouds(tmp_path)
    path = site.state / FILE
    path.write_text(text_of((terms("dear", (9, 0.9)), terms("cheap", (9, 0.1))), site.ranking, NOW))
    assert filtered(lua, site, MAX_AGE_S) == "static,cheap,dear"
    assert filtered(lua, site, MAX_AGE_S + 1) == "static,dear,cheap"
    assert filtered(lua, site, -120) == "static,dear,cheap", "written in the future"
    whole = path.read_text()
    for length in range(0, len(whole), 7):
        path.write_text(whole[:length])
        assert filtered(lua, site) in ("static,dear,cheap", "static,cheap,dear")
    path.write_text(text_of((terms("cheap", (9, 0.1)),), site.ranking, NOW))
    assert filtered(lua, site) == "static,dear,cheap", "the file of another configuration"
    for old, new in ((" 0.1 0.0 -", " 0.1"), ("offer 9", "offer nine"), ("keys ", "keys unknown ")):
        path.write_text(whole.replace(old, new))
        assert filtered(lua, site) in ("static,dear,cheap", "static,cheap,dear"), "another release"


def test_a_cloud_that_cannot_sell_sinks(lua: Callable[[str], str], tmp_path: Path) -> None:
    site = two_clouds(tmp_path)
    table = (terms("dear", (9, 0.9)), terms("cheap", (9, 0.1)))
    sold_out = replace(table[1], unavailable=Quoted(text="sold out"))
    (site.state / FILE).write_text(text_of((table[0], sold_out), site.ranking, NOW))
    assert filtered(lua, site) == "static,dear,cheap"


def test_a_list_of_several_clouds_has_a_note(lua: Callable[[str], str], tmp_path: Path) -> None:
    site = two_clouds(tmp_path)
    text = render(site, domain_pools(site, expand))[FILTER]
    show = """
local submit = slurm_elastic_submit
function slurm_elastic_submit(job, ...)
  local code = submit(job, ...)
  job.partition = tostring(job.admin_comment)
  return code
end
"""
    note = "[slurm-elastic clouds=dear,cheap]"
    assert listed(lua, {}, PARTS, text + show) == note
    assert listed(lua, {"admin_comment": "theirs"}, PARTS, text + show) == f"theirs {note}"
    assert listed(lua, {"partition": "static"}, PARTS, text + show) == "nil"
    one = {name: part for name, part in PARTS.items() if name != "cheap"}
    assert listed(lua, {}, one, text + show) == "nil"


def test_a_job_without_a_limit_counts_as_a_day(lua: Callable[[str], str], tmp_path: Path) -> None:
    site = two_clouds(tmp_path)
    slow = replace(terms("cheap", (9, 0.1)), boot_s=DEFAULT_RUN_S / 5)
    table = (terms("dear", (9, 0.11)), slow)
    (site.state / FILE).write_text(text_of(table, site.ranking, NOW))
    assert filtered(lua, site) == "static,dear,cheap"
    assert filtered(lua, site, time_limit=2 * 24 * 60 * 7) == "static,cheap,dear"


def test_ties_are_decided_alike_by_filter_offers_and_file(
    lua: Callable[[str], str], tmp_path: Path
) -> None:
    """By the order of `clouds`, also if `pools` lists them in another one."""
    site = two_clouds(tmp_path)
    site = replace(site, pools=site.pools[::-1])
    pools = ranked_pools(site, domain_pools(site, expand))
    assert [pool.cloud for pool in pools] == ["dear", "cheap"]
    table = [terms(pool.cloud, (9, 0.5)) for pool in pools]
    (site.state / FILE).write_text(text_of(table, site.ranking, NOW))
    assert filtered(lua, site) == "static,dear,cheap"
    shape = JobShape(machines={pool.name: 1 for pool in pools}, seconds=3600.0)
    ranked = partition_order(shape, table, site.ranking)
    assert [row.terms.partition for row in ranked] == ["dear", "cheap"]


def test_traffic_changes_the_order(lua: Callable[[str], str], tmp_path: Path) -> None:
    site = two_clouds(tmp_path)
    traffic = replace(site.clouds[1], traffic=Traffic(out=0.09))
    site = replace(site, clouds=(site.clouds[0], traffic))
    table = [
        terms("dear", (6, 0.2)),
        terms("cheap", (6, 0.1), traffic=TrafficTerms(price_out=0.09)),
    ]
    (tmp_path / FILE).write_text(text_of(table, ("price",), NOW))
    assert filtered(lua, site) == "static,cheap,dear"
    assert filtered(lua, site, comment="data=120G") == "static,dear,cheap"
    assert filtered(lua, site, comment="data=120G/0G") == "static,cheap,dear"
