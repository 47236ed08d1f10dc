"""Runs work whose size users choose in a process of its own, outside of slurm-elasticd.

The process has limits of memory, processor time and time. It has a low priority, and the kernel
kills it first if the host is out of memory.
"""

from __future__ import annotations

import contextlib
import math
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

TIMEOUT_S = 12  # two such processes fit into the time that the door allows for an answer
MAX_BYTES = 1 << 30
_NICE = 10
_NO_MEMORY = "out of memory"
"""The answer of a process that reached MAX_BYTES."""
_ASK_FOR_LESS = "ask for less, or run the command as root or SlurmUser, for whom it has no limit"

P = ParamSpec("P")
T = TypeVar("T")


def run_bounded(function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Call a module-level function in the bounded process and return its value.

    Raises SlurmElasticError if the function raises it or exceeds a limit, RuntimeError for any
    other failure.
    """
    return run_within(TIMEOUT_S, _ASK_FOR_LESS, function, *args, **named)


def run_within(
    timeout_s: float, advice: str, function: Callable[P, T], *args: P.args, **named: P.kwargs
) -> T:
    """Call a function as ``run_bounded`` does, but within ``timeout_s``. ``advice``: how to stay
    within the limit, for the error.
    """
    too_much = (
        f"this takes more than {brief(timeout_s)} or {MAX_BYTES >> 20} MiB, the limit of one "
        f"question: {advice}"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", __spec__.name, str(math.ceil(timeout_s))],
            input=pickle.dumps((function, args, named)),
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmElasticError(too_much) from None
    # A signal ended it: RLIMIT_CPU, or the kernel because the host was out of memory.
    if done.returncode < 0:
        raise SlurmElasticError(too_much)
    if done.returncode > 0:
        raise RuntimeError(done.stderr.decode(errors="replace").strip()[-4096:])
    error_text, result = pickle.loads(done.stdout)  # noqa: S301 - of our own process
    if error_text == _NO_MEMORY:
        raise SlurmElasticError(too_much)
    if error_text:
        raise SlurmElasticError(error_text)
    value: T = result
    return value


def _bounded(cpu_s: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # a unit's SystemCallFilter may be stricter than ours
        os.nice(_NICE)
    with contextlib.suppress(OSError):
        # The kernel then kills this process before the daemon.
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")


def _main() -> None:
    _bounded(int(sys.argv[1]))
    try:
        function, args, named = pickle.load(sys.stdin.buffer)  # noqa: S301 - of our own process
        output = pickle.dumps(("", function(*args, **named)))
    except SlurmElasticError as error:
        output = pickle.dumps((str(error), None))
    except MemoryError:
        output = pickle.dumps((_NO_MEMORY, None))
    sys.stdout.buffer.write(output)


if __name__ == "__main__":
    _main()
