"""Who is asked to end twice ends once, and well."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from patience import patience

PROGRAM = """
import sys, threading, time
from slurm_elastic.base.processes.signals import on_end
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
    begin = "import signal, threading\nfrom slurm_elastic.base.processes.signals import on_end\n"
    begin += "stop, later = threading.Event(), threading.Event()\non_end(stop.set)\n"
    subprocess.run([sys.executable, "-c", begin + program], check=True, timeout=patience(60))


def ended(program: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """A Python program that ran with ``on_end(stop.set)``, after the lines ``before``."""
    begin = "import signal, threading\nfrom slurm_elastic.base.processes import signals\n"
    begin += f"{before}\nstop = threading.Event()\nsignals.on_end(stop.set)\n"
    return subprocess.run(
        [sys.executable, "-c", begin + program],
        capture_output=True, text=True, check=False, timeout=patience(60),
    )  # fmt: skip


def test_a_signal_that_wakes_another_thread_ends_a_main_thread_that_waits() -> None:
    """The kernel chooses the thread, and only that one leaves its system call."""
    program = """
import time
main = threading.main_thread()
def signal_here():
    while open(f"/proc/self/task/{main.native_id}/stat").read().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=signal_here, daemon=True).start()
stop.wait()
"""
    assert ended(program).returncode == 0


def test_a_service_that_was_started_with_blocked_signals_can_end() -> None:
    blocked = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())"
    done = ended("import os; os.kill(os.getpid(), signal.SIGTERM); stop.wait()", blocked)
    assert done.returncode == 0


def test_a_process_that_does_not_end_is_ended_and_shows_where_it_waits() -> None:
    program = "signal.raise_signal(signal.SIGTERM)\nthreading.Event().wait()"
    done = ended(program, "signals.END_TIMEOUT_S = 0.1")
    assert done.returncode == 1
    assert 'File "<string>", line 7 in <module>' in done.stderr


def test_a_signal_to_a_forked_child_does_not_end_its_parent() -> None:
    program = """
import os
child = os.fork()
if not child:
    signal.raise_signal(signal.SIGTERM)
    os._exit(0)
os.waitpid(child, 0)
assert not stop.wait(0.2)
"""
    assert ended(program).returncode == 0
