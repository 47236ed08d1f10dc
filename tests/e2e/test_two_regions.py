"""Two regions of EC2 on real Slurm: price decides between them, whatever the order of the file, and
waiting jobs follow it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from slurm_elastic.policies.launch.order_note import noted_order
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.slurm.hooks.order_file import FILE
from tests.e2e.world import (
    ELASTIC,
    MULTIFACTOR,
    PATIENCE,
    Until,
    cleared,
    forget_cool_downs,
    held,
    ledger,
    machines,
    running_nodes,
    submit_many,
)

pytestmark = pytest.mark.e2e
FULL = "--cpus-per-task=2"
EAST, WEST = "us-east-1", "us-west-2"
TYPE = {"c5.large": {"cpus": 2, "memory": 4096, "price": 0.085}}
NODES = {EAST: "east", WEST: "west"}
DEAR, CHEAP = 0.05, 0.02
NEXT_LOOKS = 120.0
"""Seconds in which slurm-elasticd has looked at the prices at least once."""


def cloud(region: str) -> dict[str, object]:
    return {
        "name": NODES[region], "provider": "aws", "location": "public", "region": region,
        "image": "ami-12c6146b", "zones": [f"{region}a"], "types": TYPE,
    }  # fmt: skip


def pool(region: str) -> dict[str, object]:
    name = NODES[region]
    return {
        "name": f"{name}-pool", "cloud": name, "nodes": f"{name}[1-2]", "cpus": 2, "memory": 1256,
        "real_memory": 1000, "instance_types": ["c5.large"], "markets": ["spot"],
    }  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((EAST, WEST), id="east-west", marks=pytest.mark.release),
        pytest.param((WEST, EAST), id="west-east"),
    ],
)
def site(request: pytest.FixtureRequest, sandbox: Callable[..., Sandbox]) -> Iterator[Sandbox]:
    """A static node and a pool in each region, in both orders of the file. West is cheaper."""
    regions: Sequence[str] = request.param
    directory = Path(tempfile.mkdtemp(prefix="se-prices-", dir="/tmp"))
    directory.chmod(0o755)  # the emulated EC2 is another user's
    prices = directory / "prices.csv"
    prices.write_text(
        "timestamp,type,zone,price\n"
        f"2024-01-01T00:00:00+00:00,c5.large,{EAST}a,{DEAR}\n"
        f"2024-01-01T00:00:00+00:00,c5.large,{WEST}a,{CHEAP}\n"
    )
    made = sandbox(
        static_nodes=1,
        drop=("onprem", "aws"),
        slurm_conf=MULTIFACTOR,
        prices=str(prices),
        elastic={
            "clouds": [cloud(region) for region in regions],
            "pools": [pool(region) for region in regions],
            # Longer than two looks, so that each test sees a cool-down.
            "timings": {"capacity_cooldown": 100},
        },
    )
    wait_for_terms(made, f" spot {DEAR!r} ", f" spot {CHEAP!r} ")
    yield made
    shutil.rmtree(directory)


@pytest.fixture(autouse=True)
def both_sell(site: Sandbox) -> Iterator[None]:
    site.ec2.heal()
    yield
    site.ec2.heal()
    cleared(site)
    forget_cool_downs(site)


def set_prices(site: Sandbox, **prices: float) -> None:
    """Set the spot prices and wait until they are published."""
    for region, name in NODES.items():
        site.ec2.price("c5.large", f"{region}a", prices[name])
    wait_for_terms(site, *(f" spot {price!r} " for price in prices.values()))


def wait_for_terms(site: Sandbox, *texts: str) -> None:
    path = site.layout.dir / "state" / FILE
    site.wait_for(
        lambda: path.exists() and all(text in path.read_text() for text in texts),
        NEXT_LOOKS, f"{path} has {texts}",
    )  # fmt: skip


def regions_of(site: Sandbox, jobs: Sequence[int]) -> set[str]:
    """The clouds whose machines were bought for the jobs."""
    return {m.instance.cloud for m in machines(site, ended=True) if set(m.jobs) & set(jobs)}


def busy_static(site: Sandbox) -> tuple[Until, int]:
    until = Until(site)
    (job,) = submit_many(site, 1, until.script, FULL, "--partition=batch")
    running_nodes(site, [job])
    return until, job


def order_of(site: Sandbox, job: int) -> tuple[str, ...]:
    """Our partitions of a waiting job, in the order in force."""
    return noted_order(site.slurm.admin_comments().get(job, ""))


def command(site: Sandbox, *words: str) -> str:
    return site.run([*ELASTIC, "--config", str(site.layout.config), *words]).stdout


def test_a_new_job_goes_to_the_cheaper_region(site: Sandbox) -> None:
    until, _ = busy_static(site)
    (job,) = submit_many(site, 1, "sleep 1", FULL)
    site.wait_job(job)
    until.go()
    assert regions_of(site, [job]) == {"west"}


@pytest.mark.release
def test_a_job_moves_on_where_the_cheaper_region_is_sold_out(site: Sandbox) -> None:
    until, _ = busy_static(site)
    site.ec2.stock("c5.large/us-west-2a/*", 0)
    try:
        (job,) = submit_many(site, 1, "sleep 1", FULL)
        site.wait_job(job)
        with closing(ledger(site)) as book:
            refused = [d for d in book.decisions.about(f"job:{job}") if d.kind == "launch-refused"]
        assert len(refused) == 1, "one request, then the other region"
        assert regions_of(site, [job]) == {"east"}
        # The next job does not try the region again while its offer cools down.
        wait_for_terms(site, "available=1")
        (later,) = submit_many(site, 1, "sleep 1", FULL)
        assert order_of(site, later) in ((), ("east", "west"))
        site.wait_job(later)
        assert regions_of(site, [later]) <= {"east"}
    finally:
        site.ec2.stock("c5.large/us-west-2a/*", None)
        until.go()


@pytest.mark.release
def test_a_partition_that_the_user_named_stays(site: Sandbox) -> None:
    (job,) = submit_many(site, 1, "sleep 1", FULL, "--partition=east")
    site.wait_job(job)
    assert regions_of(site, [job]) == {"east"}


@pytest.mark.release
def test_waiting_jobs_follow_the_price(site: Sandbox) -> None:
    until, _ = busy_static(site)
    command(site, "pause", "--for", "10m", "--reason", "look at the order")
    (job,) = submit_many(site, 1, "sleep 1", FULL)
    site.wait_for(
        lambda: order_of(site, job) == ("west", "east"), PATIENCE, "in the order of price"
    )
    set_prices(site, east=DEAR, west=0.06)
    site.wait_for(lambda: order_of(site, job) == ("east", "west"), NEXT_LOOKS, "in the new order")
    explained = command(site, "explain", str(job))
    assert "tries cloud east before west" in explained
    assert "Clouds for this job" in explained
    # The regions' nodes are released one after the other; Slurm must see both.
    site.run(["scontrol", "hold", str(job)])
    command(site, "resume", "--all")
    site.wait_for(lambda: not held(site), PATIENCE, "no node is held")
    site.run(["scontrol", "release", str(job)])
    site.wait_job(job)
    until.go()
    assert regions_of(site, [job]) == {"east"}
    # Prices stay changed: a new job goes where it is cheaper now.
    until, _ = busy_static(site)
    (later,) = submit_many(site, 1, "sleep 1", FULL)
    # Not by what was bought: the first job's machine may still be there.
    assert site.wait_job(later)["NodeList"].startswith("east")
    until.go()
    set_prices(site, east=DEAR, west=CHEAP)
