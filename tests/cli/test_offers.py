"""``offers``: what the daemon would buy now, and why not the rest."""

from __future__ import annotations

import io
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from ledger_cases import T0, instance
from msgspec.structs import replace
from rich.console import Console

from slurm_elastic.base.errors import AuthError, SlurmElasticError, SlurmError
from slurm_elastic.cli.jobs import offers
from slurm_elastic.cli.main import main
from slurm_elastic.cli.operate.console import plain
from slurm_elastic.config import Config, configfile
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.exclusion import BREAKER, COOL_DOWN, Exclusion
from slurm_elastic.providers.fake.provider import FakeProvider
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.heartbeat import Mark, leave_mark
from slurm_elastic.state.ledger import Ledger

ME = pwd.getpwuid(os.geteuid()).pw_name
YAML = """
cluster: {{name: alps, uuid: 11111111-1111-4111-8111-111111111111}}
state_dir: {state}
slurm: {{bin_dir: {state}/no-slurm-here, user: {me}}}
allow: {{accounts: [physics]}}
limits: {{dollars_per_hour: 0.50}}
clouds:
  - name: near
    provider: fake
    location: on-premises
    types: {{small: {{cpus: 2, memory: 4G, price: 0.01}}}}
    stock: 1
  - name: far
    provider: fake
    location: public
    partition: burst
    types:
      small: {{cpus: 2, memory: 4G, price: 0.10}}
      large: {{cpus: 8, memory: 16G, price: 0.40}}
  - name: gone
    provider: local
    location: on-premises
    socket: {state}/nobody.sock
pools:
  - {{name: rack, cloud: near, nodes: "op[1-3]", cpus: 2, memory: 4G}}
  - {{name: wide, cloud: far, nodes: "pub[1-8]", cpus: 2, memory: 4G, markets: [spot, on-demand]}}
  - {{name: host, cloud: gone, nodes: "h1", cpus: 2, memory: 4G, slurmd_port: 17001}}
"""
SPOT = "far/small/zone-1/spot"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(YAML.format(state=tmp_path, me=ME))
    return path


@pytest.fixture
def config(file: Path) -> Config:
    return configfile.load(file)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.db")
    yield made
    made.close()


@pytest.fixture
def slurm() -> FakeSlurm:
    made = FakeSlurm([])
    made.set_job(7, "PENDING", partitions=("site", "burst"), node_count=6)
    made.set_job(8, "PENDING", partitions=("site",))
    return made


@pytest.mark.usefixtures("ledger")
def test_a_pools_offers_are_ranked_and_cut_at_the_worst_price(
    config: Config, slurm: FakeSlurm
) -> None:
    (pool,) = offers.gather(config, slurm, T0, pool="wide").pools
    assert [(r.offer, r.room, r.take) for r in pool.ranked] == [
        (SPOT, 5, 5),
        ("far/large/zone-1/spot", 1, 0),
        ("far/small/zone-1/on-demand", 5, 0),
        ("far/large/zone-1/on-demand", 1, 0),
    ]
    assert (pool.ranked[0].price, pool.ranked[0].worst) == (pytest.approx(0.03), 0.10)
    assert "the cluster may spend $0.50/h, spends $0.00/h and this costs up to $0.10/h" in (
        pool.ranked[0].reason
    )
    assert (pool.had, pool.nodes) == (5, 8)


def test_what_cools_down_or_is_paused_is_rejected_with_why(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    cool = Exclusion(
        kind=COOL_DOWN,
        scope=SPOT,
        until=T0 + 60,
        code="InsufficientCapacity",
        cause=Quoted(text="none left"),
        count=1,
    )
    ledger.exclusions.add(cool)
    (pool,) = offers.gather(config, slurm, T0, pool="wide", nodes=2).pools
    assert [(r.offer, r.reason) for r in pool.rejected] == [
        (SPOT, "cooling down until 08:01:00 UTC after InsufficientCapacity: none left")
    ]
    ledger.exclusions.add(
        Exclusion(
            kind=BREAKER, scope="wide", count=10, until=T0 + 9, cause=Quoted(text="10 in a row")
        )
    )
    (pool,) = offers.gather(config, slurm, T0, pool="wide").pools
    assert pool.ranked == ()
    assert {r.reason for r in pool.rejected} == {
        "pool wide is paused until 08:00:09 UTC: 10 in a row"
    }


@pytest.mark.usefixtures("ledger")
def test_a_jobs_offers_are_those_of_its_partitions(config: Config, slurm: FakeSlurm) -> None:
    found = offers.gather(config, slurm, T0, job=7)
    assert found.about == "job 7, 6 nodes"
    assert [(p.pool, p.nodes, p.had) for p in found.pools] == [("wide", 6, 5)]
    with pytest.raises(
        SlurmElasticError, match=r"job 8 is for partition site, which is not a cloud"
    ):
        offers.gather(config, slurm, T0, job=8)
    with pytest.raises(SlurmElasticError, match="job 9 is not in Slurm's queue"):
        offers.gather(config, slurm, T0, job=9)


@pytest.mark.usefixtures("ledger")
def test_a_cloud_that_cannot_be_asked_is_told_and_the_others_go_on(
    config: Config, slurm: FakeSlurm
) -> None:
    found = offers.gather(config, slurm, T0)
    errors = {p.pool: p.error for p in found.pools}
    assert (errors["rack"], errors["wide"]) == (None, None)
    assert "gone" in (errors["host"] or "")


@pytest.mark.usefixtures("ledger")
def test_a_cloud_that_refuses_our_credentials_sells_nothing(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its types and prices are typed in the configuration, so a ranking needs no answer."""

    def refused(_: FakeProvider) -> NoReturn:
        raise AuthError("far", "NoCredentials", "no credentials")

    monkeypatch.setattr(FakeProvider, "check", refused)
    assert main(["offers", "--pool", "wide", "--config", str(file)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "Pool wide of cloud far did not answer, so nothing is known of its offers: " in said
    assert "can start" not in said


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize("width", [80, 160])
def test_the_tables_fit(config: Config, slurm: FakeSlurm, width: int) -> None:
    found = offers.gather(config, slurm, T0)
    out = io.StringIO()
    offers.render(found, Console(file=out, width=width, markup=False, highlight=False))
    lines = out.getvalue().splitlines()
    assert max(len(line) for line in lines) <= width
    assert "Pool wide of cloud far: 5 of 8 nodes can start" in lines
    assert "Pool rack of cloud near: 1 of 3 nodes can start" in lines


@pytest.mark.usefixtures("ledger")
def test_the_command(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["offers", "--pool", "wide", "--nodes", "2", "--json", "--config", str(file)]) == 0
    document = msgspec.json.decode(capsys.readouterr().out)
    assert document["version"] == 1
    (pool,) = document["pools"]
    assert pool["ranked"][0]["offer"] == SPOT
    assert main(["offers", "--pool", "host", "--config", str(file)]) == 1
    assert "did not answer" in capsys.readouterr().out
    assert main(["offers", "--pool", "x", "--config", str(file)]) == 2
    assert "there is no pool 'x'" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(["offers", "--nodes", "0", "--config", str(file)])
    assert end.value.code == 2
    assert "--nodes: '0' is not a positive number" in capsys.readouterr().err


def test_before_the_first_start_it_tells_what_the_clouds_sell(
    config: Config, slurm: FakeSlurm
) -> None:
    """Whoever sets a cloud up looks there first; nothing is made by it."""
    found = offers.gather(config, slurm, T0)
    assert found.about == "all pools (slurm-elasticd has not run yet: nothing runs or cools down)"
    wide = next(pool for pool in found.pools if pool.pool == "wide")
    assert wide.ranked[0].offer == SPOT
    assert not (config.state / "ledger.db").exists()


def test_while_nothing_is_bought_that_is_the_first_line(
    config: Config,
    slurm: FakeSlurm,
    ledger: Ledger,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm.broken = SlurmError(("scontrol", "ping"), 1, "is DOWN")
    why = f"the disk of {config.state} is full"
    leave_mark(config.state, Mark(T0, os.getpid(), why, "make room", T0))
    found = offers.gather(config, slurm, T0, pool="rack", nodes=1)
    monkeypatch.setenv("COLUMNS", "200")
    offers.render(found, plain())
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith(f"The disk of {config.state} is full")
    assert any(line.startswith("Slurm does not answer: scontrol ping") for line in rest)
    assert "Pool rack of cloud near: 1 of 1 node could start" in rest
    ledger.close()


def test_nodes_that_have_a_machine_or_that_the_pool_lacks_are_not_to_be_had(
    config: Config, slurm: FakeSlurm, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    def headline(nodes: int | None = None) -> str:
        offers.render(offers.gather(config, slurm, T0, pool="wide", nodes=nodes), plain())
        return capsys.readouterr().out.splitlines()[2].rstrip()

    few = "5 of 99 nodes can start, as only 8 of the pool's have no"
    assert headline(99) == f"Pool wide of cloud far: {few}"
    for n in range(1, 8):
        ledger.machines.adopt(instance(f"i-{n}", f"pub{n}"), "wide", T0)
    assert headline() == "Pool wide of cloud far: 1 of 1 node can start"
    ledger.machines.adopt(instance("i-8", "pub8"), "wide", T0)
    assert headline() == "Pool wide of cloud far: each of its nodes has a machine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as others")
def test_root_asks_clouds_with_the_rights_of_slurm_user(
    config: Config, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SlurmUser may not read is of no use to the daemon, so no offer stands on it."""
    asked = []

    def ask(*_settings: object) -> NoReturn:
        asked.append(os.geteuid())
        raise SlurmElasticError("no")

    monkeypatch.setattr(offers, "open_provider", ask)
    config = replace(config, slurm=replace(config.slurm, user="nobody"))
    (pool,) = offers.gather(config, slurm, T0, pool="wide").pools
    assert pool.error is not None
    assert asked == [pwd.getpwnam("nobody").pw_uid]
    assert os.geteuid() == 0
