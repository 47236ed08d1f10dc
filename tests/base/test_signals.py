"""Who is asked to end twice ends once, and well."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from patience import patience

PROGRAM = """
import sys, threading, time
from slurm_elastic.base.signals import on_end
stop = threading.Event()
on_end(stop.set)
print("ready", flush=True)
stop.wait()
print("ending", flush=True)
sys.stdin.readline()
"""


def test_a_second_signal_changes_nothing() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "ending\n"
        for number in (signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(patience(60)) == 0


@pytest.mark.parametrize(
    "program",
    [
        # As in the midst of Event.wait.
        "with stop._cond:\n    signal.raise_signal(signal.SIGTERM)\nstop.wait()",
        "signal.raise_signal(signal.SIGTERM)\non_end(later.set)\nassert later.is_set()",
    ],
    ids=["while a lock is held that it takes", "before what is to be stopped is there"],
)
def test_a_signal_ends_it_whenever_it_comes(program: str) -> None:
    begin = "import signal, threading\nfrom slurm_elastic.base.signals import on_end\n"
    begin += "stop, later = threading.Event(), threading.Event()\non_end(stop.set)\n"
    subprocess.run([sys.executable, "-c", begin + program], check=True, timeout=patience(60))
