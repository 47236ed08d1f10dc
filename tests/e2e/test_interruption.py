"""Spot machines are taken away on real Slurm: the work of their jobs goes on elsewhere, each step
of it once.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.ckpt import (
    SITE,
    UNTIL_ENOUGH,
    announce,
    begun_at,
    counter,
    enough,
    kinds,
    machine_of,
    node_of,
    settled,
    steps,
    wait_steps,
)
from tests.e2e.world import ELASTIC, Until

pytestmark = pytest.mark.e2e
EXIT_SIGN = "ckpt=signal,signal=HUP"


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(**SITE)


def test_an_announced_interruption_saves_and_moves_the_job(site: Sandbox) -> None:
    job = counter(site, steps=UNTIL_ENOUGH)
    wait_steps(site, job, 8)
    node, taken = node_of(site, job), machine_of(site, job)
    announce(site, node)
    enough(site, job, runs=2)
    assert site.job(job)["Restarts"] == "1"
    assert machine_of(site, job) != taken, "its node may have got another one meanwhile"
    first, second = begun_at(site, job)
    assert first == 0
    assert second >= 8
    settled(site)
    told = [k for k in kinds(site, f"job:{job}") if k.startswith("ckpt-")]
    assert told[:4] == ["ckpt-planned", "ckpt-saved", "ckpt-requeued", "ckpt-back"]
    assert "ckpt-drained" in kinds(site, node)


@pytest.mark.release
def test_a_job_that_ends_on_the_signal_has_not_finished(site: Sandbox) -> None:
    """Exit 0 on our signal would be COMPLETED: the requeue comes after it and wins."""
    job = counter(site, comment=EXIT_SIGN, steps=UNTIL_ENOUGH)
    wait_steps(site, job, 8)
    announce(site, node_of(site, job))
    site.wait_for(lambda: site.job(job)["Restarts"] == "1", 120, "it is requeued")
    enough(site, job, runs=2)
    assert site.job(job)["ExitCode"] == "0:0"
    assert begun_at(site, job)[1] >= 8


@pytest.mark.release
def test_a_job_that_does_not_catch_the_signal_is_not_lost(site: Sandbox) -> None:
    until = Until(site)
    head = "#!/bin/bash\n#SBATCH --partition=aws --cpus-per-task=2\ntouch begun-$SLURM_JOB_ID\n"
    job = site.submit(f"{head}{until.script}\n", "--comment=ckpt=signal")
    # A signal to a script that bash has not begun yet proves nothing.
    site.wait_for((site.work / f"begun-{job}").exists, 120, "it has begun")
    announce(site, node_of(site, job))
    site.wait_for(lambda: site.job(job)["Restarts"] == "1", 120, "it is requeued")
    until.go()
    assert site.wait_job(job)["Restarts"] == "1"
    assert "ckpt-failed" in kinds(site, f"job:{job}")


PROGRAM = r"""import os, signal, time
def save(*_):
    with open("draft", "w") as draft: draft.write("saved")
    os.rename("draft", os.environ["STATE"])
signal.signal(signal.SIGUSR1, save)
open(os.environ["STATE"] + ".begun", "w").close()
while not os.path.exists(os.environ["GO"]): time.sleep(0.2)
"""


SHELL_PROGRAM = r"""#!/bin/sh
trap 'echo saved > draft-$STATE; mv draft-$STATE $STATE' USR1
touch $STATE.begun
until [ -e $GO ]; do sleep 0.2; done
"""
C_PROGRAM = r"""#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile sig_atomic_t asked;
static void ask(int s) { asked = 1; }
int main(void) {
    char name[4096];
    signal(SIGUSR1, ask);
    snprintf(name, sizeof name, "%s.begun", getenv("STATE"));
    close(open(name, O_WRONLY | O_CREAT, 0644));
    while (access(getenv("GO"), F_OK)) {
        usleep(200000);
        if (!asked) continue;
        asked = 0;
        snprintf(name, sizeof name, "%s.draft", getenv("STATE"));
        int file = open(name, O_WRONLY | O_CREAT, 0644);
        write(file, "saved", 5);
        close(file);
        rename(name, getenv("STATE"));
    }
}
"""


def test_a_save_of_a_plain_script_does_not_end_its_job(site: Sandbox) -> None:
    """The program catches the signal, but Slurm signals only the shell: the relay hands it on."""
    go = site.work / "go-plain"
    (site.work / "prog.py").write_text(PROGRAM)
    (site.work / "prog.sh").write_text(SHELL_PROGRAM)
    (site.work / "prog.sh").chmod(0o755)
    (site.work / "prog.c").write_text(C_PROGRAM)
    subprocess.run(["cc", "prog.c", "-o", "prog"], cwd=site.work, check=True)
    head = (
        "#!/bin/bash\n#SBATCH --partition=aws --cpus-per-task=1\n"
        f"export STATE=saved-$SLURM_JOB_ID GO={go}\n"
    )
    bodies = {
        "plain": "python3 prog.py | cat\n",
        "shell": "./prog.sh\n",
        "c": "./prog\n",
        "exec": "exec python3 prog.py\n",
        "late": "python3 prog.py\ntrap true USR1\n",
    }
    jobs = {
        name: site.submit(head + body, "--comment=ckpt=signal,saved=file:saved-%j")
        for name, body in bodies.items()
    }
    for job in jobs.values():
        begun = site.work / f"saved-{job}.begun"
        site.wait_for(begun.exists, 120, f"job {job} has begun")
        site.run([*ELASTIC, "ckpt", "now", str(job)])
    last = dict.fromkeys(("plain", "shell", "c", "exec"), "ckpt-saved") | {"late": "ckpt-ended"}
    for name, job in jobs.items():
        site.wait_for(lambda job=job, kind=last[name]: kind in kinds(site, f"job:{job}"), 120, name)
    late = jobs["late"]
    site.wait_for(lambda: site.job(late)["Restarts"] == "1", 120, "it is requeued")
    go.touch()
    ends = {name: site.wait_job(job) for name, job in jobs.items()}
    restarts = {name: end["Restarts"] for name, end in ends.items()}
    assert restarts == dict.fromkeys(("plain", "shell", "c", "exec"), "0") | {"late": "1"}


@pytest.mark.release
def test_an_operators_notice_and_a_save_now(site: Sandbox) -> None:
    job = counter(site, steps=UNTIL_ENOUGH)
    wait_steps(site, job, 6)
    node = node_of(site, job)
    ckpt = [*ELASTIC, "ckpt"]
    site.run([*ckpt, "now", str(job)])
    site.wait_for(lambda: "ckpt-saved" in kinds(site, f"job:{job}"), 60, "it is saved")
    assert site.job(job)["Restarts"] == "0"
    site.run([*ckpt, "notice", node, "--in", "2m", "--reason", "new kernel"])
    enough(site, job, runs=2)
    assert site.job(job)["Restarts"] == "1"
    said = site.run([*ckpt, "explain", str(job)]).stdout
    assert "new kernel" in said
    assert "back" in site.run([*ckpt, "list"]).stdout


@pytest.mark.release
def test_two_interruptions_of_an_array(site: Sandbox) -> None:
    """The base id of an array is all of its tasks to scontrol: only the one that is hit may move."""
    job = counter(site, "--array=1-2", steps=UNTIL_ENOUGH)
    tasks = site.wait_for(lambda: _tasks(site, job), 120, "both tasks run")
    for number in tasks:
        wait_steps(site, number, 6)
    hit = tasks[-1]
    for restart in ("1", "2"):
        announce(site, node_of(site, hit))
        site.wait_for(lambda want=restart: site.job(hit)["Restarts"] == want, 120, "it moves")
        count = len(steps(site, hit))
        site.wait_for(lambda seen=count: len(steps(site, hit)) > seen, 120, "it goes on")
    enough(site, hit, runs=3)
    enough(site, tasks[0], runs=1)
    assert begun_at(site, tasks[0]) == [0]


def _tasks(site: Sandbox, job: int) -> list[int]:
    found = [j for j in site.jobs() if j.array == job and "RUNNING" in j.states]
    return sorted(j.id for j in found) if len(found) == 2 else []


def test_a_node_lost_without_notice_goes_on_from_the_last_save(site: Sandbox) -> None:
    """The daemon finds the machine gone; the program finds what it saved."""
    job = counter(site, steps=UNTIL_ENOUGH)
    wait_steps(site, job, 6)
    ckpt = [*ELASTIC, "ckpt"]
    site.run([*ckpt, "now", str(job)])
    site.wait_for(lambda: "ckpt-saved" in kinds(site, f"job:{job}"), 60, "it is saved")
    announce(site, node_of(site, job), notice=0.0)
    site.wait_for(lambda: site.job(job)["Restarts"] == "1", 120, "it is requeued")
    site.wait_for(lambda: len(begun_at(site, job)) == 2, 120, "it begins again")
    assert begun_at(site, job)[1] >= 6
    (site.work / f"enough-{job}").touch()
    site.wait_job(job)
