"""slurm-elasticd for one resume request, with a clock on it.

``python -m benchmarks.resume_daemon CONFIG`` says ``ready`` when its first repair round is over,
serves the next request of the spool by the daemon's own code, prints what that took as JSON and
ends.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from benchmarks.cloud_clock import CloudClock, cpu_seconds, peak_megabytes
from slurm_elastic.config import configfile
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.daemon import Daemon
from slurm_elastic.controller.notify_socket import WakeSocket
from slurm_elastic.features.registry import FEATURES
from slurm_elastic.model.slurm import Request
from slurm_elastic.providers import open_provider
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.spool import Spool


class Usage(Struct, frozen=True):
    """The process's use so far: processor and waiting for the cloud (s), memory, calls."""

    cpu: float
    megabytes: float
    waited: float
    calls: Counter[str]
    slurm: Counter[str]


class Watched(Daemon):
    """The daemon; ``served`` is set when the work of a request is done, and ``used`` is as then:
    the next repair round may begin before all is over.
    """

    def __init__(
        self, site: Site, spool: Spool, wake: WakeSocket, usage: Callable[[], Usage]
    ) -> None:
        super().__init__(site, spool, wake, features=FEATURES)
        self.served = threading.Event()
        self.request: Request | None = None
        self.finished = 0.0
        self.usage = usage
        self.used = usage()
        for round_ in self.rounds.values():
            round_.serve = partial(self._clocked, round_.serve)  # type: ignore[method-assign]

    def warm_up(self) -> None:
        """Come to rest: the first round has read the cloud."""
        self.tick()
        for round_ in self._running_repairs.values():
            round_.result(60)
        self.used = self.usage()

    def _clocked(
        self, serve: Callable[[Request, bool], bool], request: Request, *rest: bool
    ) -> bool:
        waits = serve(request, *rest)
        self.request, self.finished, self.used = request, time.time(), self.usage()
        self.served.set()
        return waits


def run(config_path: Path) -> None:
    clock = CloudClock()
    clock.install()
    # As slurm-elasticd has it: what it logs is part of what it costs.
    logging.basicConfig(
        level="INFO", format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    config = configfile.load(config_path)
    spool = Spool(config.state)
    spool.create()
    ledger = Ledger(config.state / "ledger.db")
    wake = WakeSocket(config.state / "wake.sock")
    slurm = SlurmCli(config.slurm)
    providers = {c.name: open_provider(c, config.cluster) for c in config.clouds}

    def usage() -> Usage:
        cpu, memory = cpu_seconds(), peak_megabytes()
        return Usage(cpu, memory, clock.waited, clock.calls.copy(), Counter(slurm.calls))

    daemon = Watched(Site.of(config, slurm, ledger, providers, time.time), spool, wake, usage)
    daemon.warm_up()
    before = daemon.used
    say("ready")
    daemon.run(daemon.served)
    assert daemon.request is not None
    after = daemon.used
    say(
        json.dumps(
            {
                "received": daemon.request.received,
                "acknowledged": clock.last.get("RunInstances", 0.0),
                "finished": daemon.finished,
                "waited": after.waited - before.waited,
                "cpu": after.cpu - before.cpu,
                "start_cpu": before.cpu,
                "megabytes": after.megabytes,
                "calls": dict(after.calls - before.calls),
                "slurm": dict(after.slurm - before.slurm),
                "machines": len(ledger.machines.live()),
            }
        )
    )


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
