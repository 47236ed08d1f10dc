"""A ledger with machines, and who used them."""

from __future__ import annotations

from pathlib import Path

from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.model.memory import ChargedRun, Drained
from slurm_elastic.state.ledger import Ledger

T = 1_800_000_000.0
"""A full hour of UTC, in January 2027."""
HALF = 500_000
NOW = T + 7200
YAML = """
cluster: {{name: alps, uuid: 6f8c3a52-5a0b-4f5e-9f07-2f4d0a3a1c11}}
state_dir: {state}
slurm: {{conf: {state}/slurm.conf, bin_dir: {state}/no-slurm-here, user: {user}}}
clouds:
  - name: aws
    provider: fake
    location: public
    types: {{small: {{cpus: 4, memory: 8192, price: 0.36}}}}
  - name: own
    provider: fake
    location: on-premises
    types: {{small: {{cpus: 4, memory: 8192, price: 0}}}}
pools:
  - {{name: burst, cloud: aws, nodes: "pub[1-8]", cpus: 4, memory: 8G}}
  - {{name: rack, cloud: own, nodes: "op[1-2]", cpus: 4, memory: 8G}}
"""


def config_file(directory: Path, user: str = "root") -> Path:
    state = directory / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    path = directory / "slurm-elastic.yaml"
    path.write_text(YAML.format(state=state, user=user))
    path.chmod(0o644)
    return path


def machine(
    node: str,
    begin: float,
    price: float,
    cloud: str = "aws",
    market: Market = Market.SPOT,
) -> Instance:
    return Instance(
        id=f"i-{node}", cloud=cloud, node=node, generation=f"g-{node}", instance_type="small",
        zone="a", market=market, price=price, state=InstanceState.RUNNING, launched=begin,
    )  # fmt: skip


def book(path: Path) -> Ledger:
    """Two machines of an hour at $0.36 (100 micro-dollars a second), a third that no job had, and
    one of the site's own.
    """
    ledger = Ledger(path)
    for node in ("pub1", "pub2", "pub3"):
        ledger.machines.adopt(machine(node, T, 0.36), "burst", T)
        ledger.machines.record_registration("aws", [f"i-{node}"], T + 60)
        ledger.machines.record_ending(
            "aws", [f"i-{node}"], Quoted(text="suspended by Slurm"), T + 3500
        )
        ledger.machines.record_end(
            "aws", [f"i-{node}"], Quoted(text="suspended by Slurm"), T + 3600
        )
    ledger.machines.adopt(machine("op1", T, 0.0, "own", Market.RESERVED), "rack", T)
    ledger.machines.record_registration("own", ["i-op1"], T + 1)
    ledger.usage.write(
        (
            ChargedRun(job=7, begin=T + 60, end=T + 1060, label="7", user="ann", uid=65534,
                account="physics", partition="aws", shares=(("pub[1-2]", 1_000_000),)),
            ChargedRun(job=9, begin=T + 2060, end=T + 3060, label="8_1", user="ben", uid=1001,
                account="chemistry", partition="aws", shares=(("pub1", HALF),)),
            ChargedRun(job=10, begin=T + 2060, end=None, label="10", user="ben", uid=1001,
                account="", partition="own", shares=(("op1", HALF),)),
        ),
        (Drained(node="pub3", begin=T + 1000, end=T + 1500),),
    )  # fmt: skip
    return ledger
