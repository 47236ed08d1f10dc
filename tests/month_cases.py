"""A ledger of three months with many machines, accounts, reservations and changing spot prices."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

from slurm_elastic.base.hostlist import compress
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.model.memory import ChargedRun, Drained, PurchaseTerms
from slurm_elastic.state.ledger import Ledger

BEGIN = datetime(2026, 8, 1, tzinfo=UTC).timestamp()
END = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
NOW = END + 5000.0
MONTHS = ("2026-08", "2026-09", "2026-10")
ACCOUNTS = ("physics", "chemistry", "biology", "geo", "")
NODES = 4
YAML = """
cluster: {{name: alps, uuid: 6f8c3a52-5a0b-4f5e-9f07-2f4d0a3a1c11}}
state_dir: {state}
slurm: {{conf: {state}/slurm.conf, bin_dir: {bin}, user: root}}
clouds:
  - name: aws
    provider: fake
    location: public
    types: {{small: {{cpus: 4, memory: 8192, price: 0.36}}, big: {{cpus: 8, memory: 16384, price: 0.8}}}}
    reservations:
      - {{name: half-year, type: big, count: 4, from: "2026-09-10T12:00Z", to: "2027-03-10T12:00Z",
         upfront: 1800, price: 0.21}}
  - name: hourly
    provider: fake
    location: public
    types: {{small: {{cpus: 4, memory: 8192, price: 0.5}}}}
    policies: {{billing_increment: 1h}}
  - name: own
    provider: fake
    location: on-premises
    types: {{small: {{cpus: 4, memory: 8192, price: 0}}}}
pools:
  - {{name: burst, cloud: aws, nodes: "pub[1-4]", cpus: 4, memory: 8G}}
  - {{name: leased, cloud: hourly, nodes: "h[1-4]", cpus: 4, memory: 8G}}
  - {{name: rack, cloud: own, nodes: "op[1-4]", cpus: 4, memory: 8G}}
policies: {{budget: {{per_month: 5000}}}}
"""


def config_file(directory: Path, slurm_bin: str = "/nowhere") -> Path:
    state = directory / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    path = directory / "slurm-elastic.yaml"
    path.write_text(YAML.format(state=state, bin=slurm_bin))
    path.chmod(0o644)
    return path


def fill(path: Path, seed: int = 1) -> None:
    """Write the rows. On each node machines follow each other, with jobs that share them."""
    chance = random.Random(seed)
    ledger = Ledger(path)
    runs: list[ChargedRun] = []
    drains: list[Drained] = []
    for prefix, cloud, pool in (
        ("pub", "aws", "burst"), ("h", "hourly", "leased"), ("op", "own", "rack"),
    ):  # fmt: skip
        for number in range(1, NODES + 1):
            with ledger.store.transaction("machines", "launches"):  # one sync of the disk
                _serve(chance, ledger, f"{prefix}{number}", cloud, pool, runs, drains)
    ledger.usage.write(_with_wide_jobs(chance, runs), drains)
    ledger.close()


def one_machine(ledger: Ledger, begin: float, node: str = "pub1", account: str = "physics") -> None:
    """A spot machine of ten hours, with a job on half of it for nine."""
    why = Quoted(text="idle")
    one = Instance(
        id=f"i-{node}", cloud="aws", node=node, generation=f"g-{node}", instance_type="small",
        zone="a", market=Market.SPOT, price=0.1, state=InstanceState.RUNNING, launched=begin,
    )  # fmt: skip
    ledger.machines.adopt(one, "burst", begin, 0.36)
    ledger.machines.record_registration("aws", [one.id], begin + 60)
    ledger.machines.record_ending("aws", [one.id], why, begin + 35_990)
    ledger.machines.record_end("aws", [one.id], why, begin + 36_000)
    job = int(begin) % 100_000
    ledger.usage.write([
        ChargedRun(
            job=job, begin=begin + 60, end=begin + 32_460, label=str(job), user="ann", uid=1001,
            account=account, partition="aws", shares=((node, 500_000),),
        )
    ])  # fmt: skip


def _serve(
    chance: random.Random,
    ledger: Ledger,
    node: str,
    cloud: str,
    pool: str,
    runs: list[ChargedRun],
    drains: list[Drained],
) -> None:
    """Machines of one node, one after the other, with gaps; the last one may still run."""
    at = BEGIN - 40_000 + chance.uniform(0, 400_000)
    n = 0
    while at < NOW:
        n += 1
        lasts = chance.choice((chance.uniform(5, 400), chance.uniform(3000, 300_000)))
        market, price, dearest, kind = _bought(chance, cloud, at)
        id_ = f"i-{node}-{n}"
        one = Instance(
            id=id_, cloud=cloud, node=node, generation=f"g-{node}-{n}", instance_type=kind,
            zone="a", market=market, price=price, state=InstanceState.RUNNING,
            launched=round(at, 3),
        )  # fmt: skip
        terms = PurchaseTerms(
            billing_increment_s=3600 if cloud == "hourly" else 1,
            on_demand_price={"small": 0.36, "big": 0.8}[kind] if cloud == "aws" else None,
        )
        ledger.machines.adopt(one, pool, at, dearest, terms=terms)
        up = at + min(chance.uniform(20, 300), lasts * 0.9)
        ledger.machines.record_registration(cloud, [id_], round(up, 3))
        if (over := at + lasts) < NOW:
            decided = over - min(chance.uniform(0, 200), lasts / 20)
            why = Quoted(text="idle")
            ledger.machines.record_ending(cloud, [id_], why, round(decided, 3))
            ledger.machines.record_end(cloud, [id_], why, round(over, 3))
        runs += _jobs(chance, node, up, min(at + lasts, NOW), len(runs))
        if chance.random() < 0.2:
            begin = at + lasts * chance.random()
            drains.append(Drained(node=node, begin=round(begin, 3), end=round(begin + 5000, 3)))
        at += lasts + chance.uniform(300, 90_000)


def _bought(chance: random.Random, cloud: str, at: float) -> tuple[Market, float, float, str]:
    """Market, price, price on demand and type. Spot prices move from launch to launch."""
    if cloud == "own":
        return Market.RESERVED, 0.0, 0.0, "small"
    if cloud == "hourly":
        return Market.ON_DEMAND, 0.5, 0.5, "small"
    kind, demand = chance.choice((("small", 0.36), ("big", 0.8)))
    if chance.random() < 0.3:
        return Market.ON_DEMAND, demand, demand, kind
    day = (at - BEGIN) / 86400
    spot = demand * (0.25 + 0.002 * day) * chance.uniform(0.9, 1.1)
    return Market.SPOT, round(spot, 5), demand, kind


def _jobs(
    chance: random.Random, node: str, begin: float, end: float, first: int
) -> list[ChargedRun]:
    found: list[ChargedRun] = []
    at = begin
    while at < end:
        at += chance.uniform(0, 4000)
        lasts = chance.uniform(10, 60_000)
        for share in chance.choice(((1_000_000,), (500_000,), (250_000, 500_000), (700_000,) * 2)):
            number = first + len(found) + 1
            account = chance.choice(ACCOUNTS)
            user = f"{account or 'guest'}{chance.randint(1, 3)}"
            found.append(
                ChargedRun(
                    job=number, begin=round(at, 3), end=round(min(at + lasts, end + 10), 3),
                    label=str(number), user=user, uid=1000 + number % 7, account=account,
                    partition=node.rstrip("0123456789"), shares=((node, share),),
                )
            )  # fmt: skip
        at += lasts
    return found


def _with_wide_jobs(chance: random.Random, runs: list[ChargedRun]) -> list[ChargedRun]:
    """Some jobs on several nodes, at whatever time: machines may be there or not."""
    number = len(runs)
    for _ in range(60):
        number += 1
        nodes = [f"pub{n}" for n in sorted(chance.sample(range(1, NODES + 1), 3))]
        begin = round(chance.uniform(BEGIN, END), 3)
        runs.append(
            ChargedRun(
                job=number, begin=begin, end=begin + 30_000, label=str(number), user="wide",
                uid=1, account="physics", partition="pub", shares=((compress(nodes), 600_000),),
            )
        )  # fmt: skip
    return runs
