"""Does work whose size strangers choose in a process of its own, not in slurm-elasticd. It has
limits of memory, processor time and time, runs after everything else on the host, and is the first
to be killed if the host is out of memory.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.units import brief

SECONDS = 12  # two of these fit into the time for which the door waits for an answer
MEMORY = 1 << 30
_NICE = 10
_TOO_MUCH = (
    f"this takes more than {brief(SECONDS)} or {MEMORY >> 20} MiB, which is what one question may "
    "take: ask for less, or as root or SlurmUser, who need no answer of slurm-elasticd's"
)

P = ParamSpec("P")
T = TypeVar("T")


def apart(function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Call a module's function in that process. SlurmElasticError if it raises that or needs too
    much; RuntimeError if it fails otherwise.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __spec__.name],
            input=pickle.dumps((function, args, named)),
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmElasticError(_TOO_MUCH) from None
    # Ended by a signal: for its processor time, or since the host was out of memory.
    if done.returncode < 0:
        raise SlurmElasticError(_TOO_MUCH)
    if done.returncode > 0:
        raise RuntimeError(done.stderr.decode(errors="replace").strip()[-4096:])
    why, found = pickle.loads(done.stdout)  # noqa: S301 - of our own process
    if why:
        raise SlurmElasticError(why)
    value: T = found
    return value


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # a unit's SystemCallFilter may be stricter than ours
        os.nice(_NICE)
    with contextlib.suppress(OSError):
        # The first to be killed if the host is out of memory, not the daemon.
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")


def _main() -> None:
    _bounded()
    try:
        function, args, named = pickle.load(sys.stdin.buffer)  # noqa: S301 - of our own process
        said = pickle.dumps(("", function(*args, **named)))
    except SlurmElasticError as error:
        said = pickle.dumps((str(error), None))
    except MemoryError:
        said = pickle.dumps((_TOO_MUCH, None))
    sys.stdout.buffer.write(said)


if __name__ == "__main__":
    _main()
