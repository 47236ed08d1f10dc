"""A site whose policies change from test to test, and what its nodes and its journal say."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import yaml

from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.state.ledger import Decision
from tests.e2e.world import ELASTIC, cleared, ledger

FULL = ("--cpus-per-task=2", "--partition=aws")
HELD = "slurm-elastic:hold:"
LOOK = "1s"
DAY = 86400.0


def configure(
    site: Sandbox,
    cloud: Mapping[str, Any] | None = None,
    pool: Mapping[str, Any] | None = None,
    **policies: Any,
) -> float:
    """From now on the site has these policies, by a changed file and a new daemon; the time now."""
    config = yaml.safe_load(site.layout.config.read_text())
    config["policies"] = {"poll_interval": LOOK, **policies}
    config["clouds"][0]["policies"] = dict(cloud or {})
    config["pools"][0]["policies"] = dict(pool or {})
    site.daemon_stop()
    site.layout.config.write_text(yaml.safe_dump(config))
    since = time.time()  # the new daemon may decide at once
    site.daemon_start()
    return since


def not_at_midnight(seconds: float = 300.0) -> None:
    """A budget's day begins at midnight UTC, with nothing spent: wait until this one has so long to go."""
    left = DAY - time.time() % DAY
    if left < seconds:
        time.sleep(left + 1.0)


def clear(site: Sandbox) -> None:
    """No job is left, and no machine."""
    configure(site, release="on_demand")
    cleared(site)


def nodes(site: Sandbox) -> dict[str, SlurmNode]:
    return {name: node for name, node in site.nodes().items() if name.startswith("pub")}


def up(site: Sandbox) -> list[str]:
    return sorted(n for n, node in nodes(site).items() if phase(node) is Phase.UP)


def held(site: Sandbox) -> list[str]:
    found = nodes(site).values()
    return sorted(n.name for n in found if "DRAIN" in n.states and n.reason.startswith(HELD))


def decisions(site: Sandbox, since: float, kind: str = "policy") -> list[Decision]:
    """The decisions on the pool, the oldest first."""
    book = ledger(site)
    try:
        found = book.decisions.about("pool:pub", 500)
    finally:
        book.close()
    return [d for d in found if d.kind == kind and d.at >= since]


def starts(site: Sandbox, since: float) -> list[Decision]:
    return [d for d in decisions(site, since) if d.detail and d.detail["plan"]["starts"]]  # type: ignore[index]


def alive(site: Sandbox, first: int) -> list[int]:
    """Jobs from ``first`` on that have not ended."""
    on = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}
    return [job.id for job in site.jobs() if job.id >= first and job.states & on]


def told(site: Sandbox, *command: str) -> str:
    """All of a command's words, however its table was folded."""
    done = site.run([*ELASTIC, *command])
    return " ".join(done.stdout.split())
