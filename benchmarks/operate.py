"""A large cluster: processor time and lines of status and explain, and what its queue costs.

10,000 nodes, 2,000 machines with a job each, 20 of whose nodes are down. Slurm's commands are
scripts that answer at once, as long as Slurm 22.05's do, and the ledger is a real one.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from msgspec import Struct

from benchmarks import page_paint, queue_reading, wait_notes
from benchmarks.report import Report, Row, bounded, compared, median, noted, report
from benchmarks.stub_slurm import json_node
from slurm_elastic.config import configfile
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import (
    Instance,
    InstanceState,
    LaunchSpec,
    Location,
    Market,
    Offer,
    Pool,
)
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.ledger import Decision, Ledger
from slurm_elastic.watch.door.metrics import node_states, text

STATUS_SECONDS, STATUS_LINES, EXPLAIN_LINES = 0.25, 60, 40
BARE = 3.0
"""Times of a bare reading that status may take."""
SCRAPE_SECONDS, MOST_SERIES = 0.05, 2000
_DOWN_EACH = 100
_SLURM = """\
#!/bin/sh
case "$*" in
*--version*) echo "slurm-wlm 22.05.8" ;;
ping*) echo "Slurmctld(primary) at head is UP" ;;
*--Format*) for last; do :; done; mark=${last#JobID:0}; mark=${mark%%,*}
  exec sed "s#</@@#</${mark#<}#; s#@@#$mark#g" "${0%/bin/*}/queue.txt" ;;
*) exec cat "${0%/bin/*}/${0##*/}.json" ;;
esac
"""


_BARE = """\
import json, sqlite3, subprocess, sys
place = sys.argv[1]
db = sqlite3.connect(f"file:{place}/state/ledger.db?mode=ro", uri=True)
machines = db.execute("select * from machines").fetchall()
nodes = json.loads(subprocess.check_output([f"{place}/bin/sinfo", "--json"]))["nodes"]
queue = subprocess.check_output([f"{place}/bin/squeue", "--Format=x,JobID:0@@,x"], text=True)
jobs = [line.split("@@") for line in queue.splitlines()]
print(len(machines), len(nodes), len(jobs))
"""
"""The least that status has to do: read the same ledger and Slurm's answers."""


class Ran(Struct, frozen=True):
    """One command: its processor time with its children's, and what it printed."""

    seconds: float
    lines: int


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench operate")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--machines", type=int, default=2_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", type=int, nargs="*", default=[10_000, 100_000])
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-operate-") as name, compiled_in(name):
        config = site(Path(name), options.nodes, options.machines)
        bare = median(
            [ran([sys.executable, "-c", _BARE, name]).seconds for _ in range(options.runs)]
        )
        rows = [
            row for words, lines in (
                (("status",), STATUS_LINES),
                (("status", "--all"), None),
                (("explain", "n1"), EXPLAIN_LINES),
                (("explain", "1"), EXPLAIN_LINES),
            ) for row in measured(config, words, lines, options.runs, bare)
        ]  # fmt: skip
        rows += [row for jobs in options.jobs for row in queue_reading.rows(Path(name), jobs)]
        rows += [
            row for jobs in options.jobs for row in wait_notes.rows(config, jobs, options.runs)
        ]
        rows += metrics(config, options.runs)
        words = ("cost", "--by", "job", "--format", "csv")
        rows += measured(config, words, None, options.runs, bare)
        rows += page_paint.rows(config, [sys.executable, "-c", _BARE, name], options.runs)
        rows.append(noted("an empty Python with the package", median(
            [ran([sys.executable, "-c", "import slurm_elastic.cli.main"]).seconds
             for _ in range(options.runs)]
        ), "s"))  # fmt: skip
    return report("operate", rows)


def compiled_in(directory: str) -> AbstractContextManager[object]:
    """Commands are compiled once, as what is installed is, and not in the tree that is measured."""
    place = {"PYTHONPYCACHEPREFIX": f"{directory}/compiled", "PYTHONDONTWRITEBYTECODE": ""}
    return patch.dict(os.environ, place)


def measured(
    config: Path, words: Sequence[str], most: int | None, runs: int, bare: float
) -> list[Row]:
    """The median's processor time, also beside a ``bare`` reading of the same, and the lines."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "slurm_elastic.cli.main",
        "--config",
        str(config),
        *words,
    ]
    found = [ran(command) for _ in range(runs)]
    label, seconds = " ".join(words), median([one.seconds for one in found])
    lines = found[0].lines
    return [
        bounded(f"{label}: processor time", seconds, STATUS_SECONDS, "s")
        if words == ("status",) else noted(f"{label}: processor time", seconds, "s"),
        compared(f"{label}: beside bare reading", seconds, bare, "s",
                 at_most=BARE if words == ("status",) else None),
        noted(f"{label}: lines", lines, "lines") if most is None
        else bounded(f"{label}: lines", lines, most, "lines"),
    ]  # fmt: skip


def metrics(config: Path, runs: int) -> list[Row]:
    """Make the file of a scrape, but for the program's start and its reading of Slurm."""
    settings = configfile.load(config)
    states = node_states(settings, time.time(), PromptCli(settings.slurm))
    found, seconds = b"", []
    for _ in range(runs):
        began = time.process_time()
        found = text(settings, time.time(), states)
        seconds.append(time.process_time() - began)
    series = sum(not line.startswith(b"#") for line in found.splitlines())
    return [
        bounded("a scrape: processor time", median(seconds), SCRAPE_SECONDS, "s"),
        bounded("a scrape: series", series, MOST_SERIES, "series"),
    ]


def ran(command: Sequence[str]) -> Ran:
    """SystemExit where it fails, or cannot read what it should."""
    environment = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
        _, code, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(code)
        out.seek(0)
        text = out.read()
    if process.returncode or "cannot be read" in text or "not answer" in text:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}: {text[:2000]}")
    return Ran(used.ru_utime + used.ru_stime, text.count("\n"))


def site(place: Path, nodes: int, machines: int) -> Path:
    """A state directory, a configuration and Slurm's answers below ``place``."""
    state = place / "state"
    (state / "requests").mkdir(parents=True)
    state.chmod(0o700)
    (place / "bin").mkdir()
    for name in ("sinfo", "squeue", "scontrol"):
        (place / "bin" / name).write_text(_SLURM)
        (place / "bin" / name).chmod(0o755)
    (place / "slurm.conf").write_text("ClusterName=bench\n")
    fill(state / "ledger.db", machines)
    answer = {"meta": {}, "errors": [], "nodes": records(nodes, machines)}
    (place / "sinfo.json").write_text(json.dumps(answer, indent=1))
    (place / "queue.txt").write_text("".join(jobs(machines)))
    config = place / "slurm-elastic.yaml"
    config.write_text(yaml.safe_dump(settings(place, nodes)))
    return config


def settings(place: Path, nodes: int) -> dict[str, Any]:
    """As few as there can be."""
    shape = {"cpus": 2, "memory": "4G", "price": 0.1}
    return {
        "cluster": {"name": "bench", "uuid": "11111111-1111-4111-8111-111111111111"},
        "state_dir": str(place / "state"),
        "slurm": {"conf": str(place / "slurm.conf"), "bin_dir": str(place / "bin"),
                  "user": pwd.getpwuid(os.geteuid()).pw_name},
        "allow": {"groups": ["users"]},
        "limits": {"dollars_per_hour": 1000.0},
        "clouds": [{"name": "pub", "provider": "fake", "location": "public",
                    "types": {"t": shape}}],
        "pools": [{"name": "p", "cloud": "pub", "nodes": f"n[1-{nodes}]", "cpus": 2,
                   "memory": "4G", "instance_types": ["t"], "markets": ["spot"]}],
    }  # fmt: skip


def fill(path: Path, machines: int) -> None:
    """One launch an hour ago of them all."""
    now = time.time()
    names = tuple(f"n{n}" for n in range(1, machines + 1))
    offer = Offer(
        cloud="pub", location=Location.PUBLIC, instance_type="t", zone="z", market=Market.SPOT,
        price=0.03, cpus=2, memory=4096, on_demand_price=0.1,
    )  # fmt: skip
    pool = Pool(name="p", cloud="pub", nodes=names, cpus=2, real_memory=4000)
    instances = [
        Instance(
            id=f"i-{n:017x}", cloud="pub", node=name, generation="g1", instance_type="t", zone="z",
            market=Market.SPOT, price=0.03, state=InstanceState.RUNNING, launched=now - 3600,
        )
        for n, name in enumerate(names)
    ]  # fmt: skip
    ledger = Ledger(path)
    spec = LaunchSpec(generation="g1", pool=pool, nodes=names, offer=offer)
    ledger.launches.record_intent(spec, "r1", now - 3600)
    ledger.machines.record_launch("g1", instances, now - 3590)
    ledger.decisions.record(
        Decision(
            at=now - 3590, correlation="r1", kind="launched", subjects=(*names, "job:1"),
            cause=Quoted(text=f"{machines} machines of pub/t/z/spot"),
        )
    )  # fmt: skip
    ledger.usage.write([
        ChargedRun(job=n, begin=now - 3500, label=str(n), user=f"u{n % 50}", account=f"a{n % 9}",
            partition="pub", shares=((name, 500_000),))
        for n, name in enumerate(names, 1)
    ])  # fmt: skip
    ledger.health.beat("slurm-elasticd", now, os.getpid())
    ledger.close()


def records(nodes: int, machines: int) -> list[dict[str, object]]:
    """Slurm's nodes: busy ones, some of them down, and those that are powered down."""
    return [json_node(f"n{n}", *_state(n, machines)) for n in range(1, nodes + 1)]


def _state(number: int, machines: int) -> tuple[str, list[str]]:
    if number > machines:
        return "idle", ["CLOUD", "POWERED_DOWN"]
    return ("down", ["CLOUD"]) if number % _DOWN_EACH == 0 else ("allocated", ["CLOUD"])


def jobs(machines: int) -> Iterator[str]:
    """One on each machine whose node is not down."""
    for n in range(1, machines + 1):
        if n % _DOWN_EACH:
            start = int(time.time()) - 600
            yield queue_reading.record(n, State="RUNNING", NodeList=f"n{n}", StartTime=str(start))
