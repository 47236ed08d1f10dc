"""The notes on waiting jobs: processor time of a look at a long queue, and of an update.

Slurm is in memory, so the time of its commands is not in these figures (``queue_reading`` has it).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from benchmarks.report import Row, bounded, median, noted
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, configfile
from slurm_elastic.controller.context import Site
from slurm_elastic.features.waits.wait_notes import PAUSE_PER_DURATION, PERIOD_S
from slurm_elastic.features.waits.wait_texts import WaitTexts
from slurm_elastic.model.directive import Directive, Pause
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ledger import Ledger

CORE = 5.0
"""% of a core that the looks may take."""
SHAPES = 20
"""Different requests in the queue."""


def rows(config: Path, jobs: int, runs: int) -> Iterator[Row]:
    """A look while the cloud sells, and one while it is paused, so that each job gets a note."""
    with tempfile.TemporaryDirectory(prefix="bench-notes-") as name:
        settings = replace(configfile.load(config), state_dir=name)
        with closing(Ledger(Path(name) / "ledger.db")) as ledger:
            site = Site.of(settings, slurm(settings, jobs), ledger, {}, time.time)
            label = f"{jobs} waiting jobs"
            seconds, _ = measured(site, runs)
            yield noted(f"{label}: a look while the cloud sells", seconds, "s")
            now = time.time()
            order = Directive(word=Pause(scope="cloud:pub"), who="bench", since=now, starts=now)
            ledger.directives.give(order)
            seconds, notes = measured(site, runs)
            if notes != jobs:
                raise SystemExit(f"{notes} of {jobs} jobs got a note")
            yield noted(f"{label}: a look while it is paused", seconds, "s")
            share = 100 * seconds / max(PERIOD_S, (1 + PAUSE_PER_DURATION) * seconds)
            yield bounded(f"{label}: looks, of a core", share, CORE, "%")


def measured(site: Site, runs: int) -> tuple[float, int]:
    """The median's processor time of a look, and how many jobs get a note."""
    jobs, judge = site.slurm.jobs(), WaitTexts(site)
    found, seconds = 0, []
    for _ in range(runs):
        began = time.process_time()
        found = sum(1 for _ in judge.of(jobs))
        seconds.append(time.process_time() - began)
    return median(seconds), found


def slurm(settings: Config, jobs: int) -> FakeSlurm:
    """All nodes are powered down, and all jobs wait for them."""
    (pool,) = settings.pools
    states = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
    nodes = [SlurmNode(name=node, states=states) for node in expand(pool.nodes)]
    waiting = [
        SlurmJob(
            id=n, states=frozenset({"PENDING"}), partitions=("pub",), reason="Priority",
            submit=time.time() - 600, account=f"a{n % 9}", user=f"u{n % 50}", uid=1000 + n % 50,
            limit=3600, priority=n, node_count=1 + n % SHAPES,
        )
        for n in range(1, jobs + 1)
    ]  # fmt: skip
    return FakeSlurm(nodes, waiting)
