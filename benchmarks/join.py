"""From a machine's start to its node idle in Slurm, through a WireGuard tunnel and without one.

A real slurmctld, slurm-elasticd and hub on the head; machines are network namespaces on which the
shipped text of joining runs: a munged, sshd and slurmd each. One kind is behind a router that
masquerades and opens a tunnel, the other has a route to the head. They are started in turn, one at
a time; once with ``enrol: console``, once with ``enrol: once``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Report, Row, holds, median, noted, report
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.spec import IMAGE, SandboxSpec

TESTS = Path(__file__).resolve().parents[1] / "tests"
LONGER = 3.0
"""Seconds that a tunnel may add."""
PATIENCE = 300.0
TUNNEL, ROUTE = "pub", "near"
"""The nodes of either kind, and how they begin."""
EC2: dict[str, Any] = {
    "provider": "aws", "location": "public", "region": "us-east-1", "image": IMAGE,
    "zones": ["us-east-1a"], "types": {"small": {"cpus": 2, "memory": 2048, "price": 0.1}},
}  # fmt: skip
NEBULA: dict[str, Any] = {
    "provider": "opennebula", "location": "on-premises",
    "types": {"small": {"cpus": 2, "memory": 2048, "template": 3}},
}  # fmt: skip
CLOUDS = {"console": EC2, "once": NEBULA}
"""By how their machines enrol, which is how they do by default."""
STAGES = (("enrolled", "its key is believed"), ("key-brought", "the munge key is there"))
"""Decisions of the ledger, and what they say of the machine."""


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench join")
    parser.add_argument("--machines", type=int, default=6, help="of each kind (default 6)")
    parser.add_argument("--reconcile", type=float, default=30.0,
                        help="s between rounds of repair (default 30, as on a site)")  # fmt: skip
    parser.add_argument("--enrol", nargs="+", choices=CLOUDS, default=list(CLOUDS),
                        help="the ways of enrolling (default: both)")  # fmt: skip
    options = parser.parse_args(arguments)
    if not 1 <= options.machines <= 100:
        parser.error(f"--machines: {options.machines} is not between 1 and 100")
    sys.path.insert(0, str(TESTS))  # the world of the tests, which are no package
    netns, lab_site = (importlib.import_module(f"tests.{n}") for n in ("netns", "e2e.lab_site"))
    if why := netns.why_not() or lab_site.no_sshd():
        sys.exit(f"join cannot be measured here: {why}")
    rows: list[Row] = []
    for way in options.enrol:
        lab = netns.Lab(machines=2 * options.machines)
        with lab.up(), _site(lab_site, lab, way, options) as site:
            rows += _rows(way, *_joined(site, options.machines))
    return report("join", rows)


@contextlib.contextmanager
def _site(world: Any, lab: Any, way: str, options: argparse.Namespace) -> Iterator[Any]:  # noqa: ANN401
    kinds = (TUNNEL, ROUTE)
    elastic = {
        "clouds": [{"name": f"cloud-{kind}", **CLOUDS[way]} for kind in kinds],
        "pools": [_pool(kind, options.machines) for kind in kinds],
        "timings": {"reconcile_interval": options.reconcile},
    }
    with (
        _sandboxes() as sandbox,
        world.site_on(
            lab, sandbox, {"clouds": [f"cloud-{TUNNEL}"]}, routed=[f"cloud-{ROUTE}"],
            consoles=way == "console", elastic=elastic, drop=("onprem", "aws"),
        ) as site,
    ):  # fmt: skip
        yield site


def _pool(kind: str, machines: int) -> dict[str, Any]:
    return {
        "name": kind, "cloud": f"cloud-{kind}", "nodes": f"{kind}[1-{machines}]",
        "cpus": 2, "memory": 1256, "real_memory": 1000,
        "instance_types": ["small"], "markets": ["on-demand"],
    }  # fmt: skip


@contextlib.contextmanager
def _sandboxes() -> Iterator[Callable[..., Sandbox]]:
    with contextlib.ExitStack() as ended:

        def make(**more: Any) -> Sandbox:  # noqa: ANN401
            directory = Path(tempfile.mkdtemp(prefix="se-", dir="/tmp"))
            directory.chmod(0o755)
            made = Sandbox(SandboxSpec(dir=directory, **more))
            made.up()
            ended.callback(made.down)
            return made

        yield make


Join = dict[str, float]
"""One machine's seconds from its start to each stage, and to ``idle``."""


def _joined(site: Any, machines: int) -> tuple[list[Join], list[Join]]:  # noqa: ANN401
    """The joins of both kinds, in turn."""
    found: dict[str, list[Join]] = {TUNNEL: [], ROUTE: []}
    for n in range(1, machines + 1):
        for kind in (TUNNEL, ROUTE) if n % 2 else (ROUTE, TUNNEL):
            took = _join(site, f"{kind}{n}")
            told = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in took.items())
            print(f"{kind}{n}: {told}", file=sys.stderr, flush=True)
            found[kind].append(took)
    return found[TUNNEL], found[ROUTE]


def _join(site: Any, node: str) -> Join:  # noqa: ANN401
    site.sandbox.run(["scontrol", "update", f"nodename={node}", "state=power_up"])
    site.sandbox.wait_for(lambda: node in site.machines.begun, PATIENCE, f"{node} is started")
    site.sandbox.wait_for(lambda: site.is_idle(node), PATIENCE, f"{node} is idle", period=0.1)
    idle, began = time.time(), site.machines.begun[node]
    at = {one.kind: one.at for one in site.decisions(node)}
    stages = {stage: at[stage] - began for stage, _ in STAGES if stage in at}
    return {**stages, "idle": idle - began}


def _rows(way: str, tunnel: Sequence[Join], route: Sequence[Join]) -> list[Row]:
    with_it, without = (median([one["idle"] for one in some]) for some in (tunnel, route))
    count = f"median of {len(tunnel)}"
    rows = [
        holds(
            f"enrol: {way}: a join is longer by", with_it - without, "s",
            ok=with_it - without <= LONGER, goal=f"<= {LONGER:g}",
        ),
        noted(f"enrol: {way}: with a tunnel, {count}", with_it, "s"),
        noted(f"enrol: {way}: without one, {count}", without, "s"),
    ]  # fmt: skip
    for how, some in (("with", tunnel), ("without", route)):
        least = min(one["idle"] for one in some)
        rows.append(noted(f"enrol: {way}: {how}: the fastest", least, "s"))
    for stage, what in STAGES:
        for some, how in ((tunnel, "with"), (route, "without")):
            seen = [one[stage] for one in some if stage in one]
            rows += [noted(f"enrol: {way}: {how}: {what} after", median(seen), "s")] if seen else []
    return rows
