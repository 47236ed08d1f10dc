"""Who is asked to end twice ends once, and well."""

from __future__ import annotations

import signal
import subprocess
import sys

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
