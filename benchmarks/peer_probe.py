"""ParallelCluster's ``slurm_resume`` with a clock on it; runs in its own environment.

``python -m benchmarks.peer_probe BEGAN HOSTLIST`` prints as JSON what it took since BEGAN (Unix
time, when its process was started). Nothing of ours is imported but the clock.
"""

from __future__ import annotations

import json
import logging
import sys
import time

from benchmarks.cloud_clock import CloudClock, cpu_seconds, peak_megabytes


def run(began: float, hostlist: str) -> dict[str, object]:
    # It would log below /var/log before it has read where to log.
    logging.getLogger().addHandler(logging.NullHandler())
    clock = CloudClock()
    clock.install()
    from slurm_plugin import resume  # type: ignore[import-not-found]

    sys.argv = ["slurm_resume", hostlist]
    resume.main()
    wall = time.time() - began
    return {
        "wall": wall,
        "outside": wall - clock.waited,
        "cpu": cpu_seconds(),
        "megabytes": peak_megabytes(),
        "calls": dict(clock.calls),
    }


if __name__ == "__main__":
    result = run(float(sys.argv[1]), sys.argv[2])
    sys.stdout.write(json.dumps(result) + "\n")
