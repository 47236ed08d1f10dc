"""CRIU on real Slurm 24.11: plain ``sbatch``, containers as separate hosts."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import IO

import pytest

from slurm_elastic.machine.ckptroot import manifest as manifests

from .criu_world import PROGRAM, UNSAVABLE, CriuWorld, announced, gone, needed, power_cut, started
from .engine import Engine
from .served_world import swept

pytestmark = pytest.mark.e2e


STAGE = "/var/tmp/slurm-elastic-stage"


class StagedWorld(CriuWorld):
    """Periodic images come to the shared directory by a disk of the node's own."""

    stage = "/var/tmp"


@pytest.fixture(scope="module")
def world(docker_engine: Engine, trixie: str) -> Iterator[CriuWorld]:
    with StagedWorld(docker_engine, trixie) as running:
        needed(running)
        yield running


@pytest.fixture(autouse=True)
def all_nodes(world: CriuWorld) -> None:
    world.all_up()


def test_an_announced_move_keeps_each_step_once_and_the_exit_code(world: CriuWorld) -> None:
    assert len(announced(world, moves=2)) == 3


def test_a_power_cut_costs_what_came_after_the_last_image(world: CriuWorld) -> None:
    power_cut(world)


@pytest.mark.release
def test_periodic_images_leave_nothing_on_the_nodes_own_disk(world: CriuWorld) -> None:
    job = started(world)
    node = world.nodes()[world.job(job)["NodeList"]]
    assert world.ask(job, "go")["ok"]["number"] == 1
    assert node.run(["ls", "-A", f"{STAGE}/{job}"]).stdout == "", "it was used"
    assert "stage" not in (world.directory_of(job) / "status.json").read_text()
    world.end(job)
    world.wait_for(lambda: not node.run(["ls", "-A", STAGE]).stdout, "it goes with it")
    gone(world, job)


TAKEN = "to continue from its images: job {job} is driven by another process already"
SILENT = "to continue from its images: slurmctld does not answer"


@contextlib.contextmanager
def lease(world: CriuWorld, job: int) -> Iterator[None]:
    """The job's machine is gone, and its lock stays, as a server of NFS keeps it for a while."""
    lost = world.job(job)["NodeList"]
    world.nodes()[lost].kill()
    try:
        with open(world.directory_of(job) / "lock", "rb") as lock:
            world.wait_for(lambda: _locked(lock), "the machine's kernel lets go of it")
            world.slurm("scontrol", "update", f"nodename={lost}", "state=down", "reason=lost")
            world.hurry(job)
            yield
    finally:
        world.start_node(lost)


def _locked(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def waits(world: CriuWorld, job: int, why: str) -> None:
    """It says so in its output, where nothing else is yet, and in the syslog."""
    said = why.format(job=job)
    world.wait_for(
        lambda: any(line.endswith(said) for line in world.output(job)), f"job {job} waits {said}"
    )
    begins = "slurm-elastic: the job waits, up to "
    assert all(line.startswith(begins) for line in world.output(job))
    syslog = world.shared / "log" / f"{world.job(job)['NodeList']}.syslog"
    world.wait_for(lambda: said in syslog.read_text(), "its node says so")


def has_gone_on(world: CriuWorld, job: int) -> None:
    """From its image, and to its end: each step is there once, and no word of a wait."""
    status = world.directory_of(job) / "status.json"
    world.wait_for(lambda: "continues from image 1" in status.read_text(), f"job {job} goes on")
    world.wait_more(job)
    assert world.end(job)["Restarts"] == "1"
    gone(world, job)


@pytest.mark.release
def test_a_lock_that_outlives_its_machine_is_waited_for(world: CriuWorld) -> None:
    job = started(world)
    assert world.ask(job, "go")["ok"]["number"] == 1
    with lease(world, job):
        waits(world, job, TAKEN)
    has_gone_on(world, job)


@pytest.mark.release
def test_scancel_ends_the_wait_for_a_lock(world: CriuWorld) -> None:
    job = started(world)
    assert "ok" in world.ask(job, "go")
    with lease(world, job):
        waits(world, job, TAKEN)
        world.slurm("scancel", str(job))
        shown = world.wait_job(job, "CANCELLED")
        assert shown["ExitCode"] == "0:15"
    host = next(iter(world.nodes().values()))
    assert f"job {job}: removed" in host.run([PROGRAM, "sweep"]).stdout
    gone(world, job)


@pytest.mark.release
def test_a_restart_waits_for_a_slurmctld_that_does_not_answer(world: CriuWorld) -> None:
    job = started(world)
    assert world.ask(job, "stop")["ok"]["number"] == 1
    with world.silence("ready", "run"):
        world.move(job)
        waits(world, job, SILENT)
    has_gone_on(world, job)


PRINTS = """\
#!/bin/bash
echo "$(id) $(umask) $PWD $HOME $INPUT $SLURM_JOB_NUM_NODES $# $2 $(ulimit -S -a) $(ulimit -H -a)"
echo "job $SLURM_JOB_ID"
exit 3
"""


@pytest.mark.release
@pytest.mark.parametrize("silent", [("ready", "run"), ("run",)], ids=["at first", "then"])
def test_a_job_that_cannot_be_driven_is_as_if_it_had_no_launcher(
    world: CriuWorld, silent: tuple[str, ...]
) -> None:
    """Its user, limits, directory and environment, whenever slurmctld falls silent."""
    outputs = []
    for comment in ("ckpt=none", "ckpt=criu"):
        with world.silence(*silent):
            options = ("-o", "out-%j", f"--comment={comment}", "--export=ALL,INPUT=/data/x")
            job = world.sbatch(PRINTS, *options)
            assert world.wait_job(job, "FAILED")["ExitCode"] == "3:0"
        *lines, last = world.output(job)
        assert last == f"job {job}"
        outputs.append(lines)
    assert outputs[0] == outputs[1]
    assert "uid=2000(alice)" in outputs[0][0]
    assert "/data/x 1" in outputs[0][0]


@pytest.mark.release
def test_what_cannot_be_saved_goes_on_unharmed(world: CriuWorld) -> None:
    job = world.sbatch(UNSAVABLE, "-o", "out-%j")
    world.standing(job)
    world.wait_more(job)
    assert "no checkpoint" in world.ask(job, "stop")["error"]
    assert world.ask(job, "images")["ok"] == []
    world.wait_more(job)
    world.end(job)
    gone(world, job)


ZOMBIE = """\
#!/usr/bin/python3
import os, subprocess, time
child = subprocess.Popen(["sh", "-c", "exit 5"])
step = 0
while not os.path.exists(f"end-{os.environ['SLURM_JOB_ID']}"):
    print("step", step, flush=True)
    step += 1
    time.sleep(0.2)
print("child", child.wait())
"""


@pytest.mark.release
def test_a_child_that_nobody_has_asked_for_moves_along(world: CriuWorld) -> None:
    job = world.sbatch(ZOMBIE, "-o", "out-%j")
    world.standing(job)
    world.wait_more(job)
    assert "ok" in world.ask(job, "stop")
    assert world.move(job) != world.job(job)["NodeList"]
    world.wait_more(job)
    (world.shared / "jobs" / f"end-{job}").touch()
    world.wait_job(job)
    assert world.output(job)[-1] == "child 5"


@pytest.mark.release
def test_a_held_job_can_go_on_where_it_is(world: CriuWorld) -> None:
    job = started(world)
    assert "ok" in world.ask(job, "stop")
    held = world.steps(job)
    assert world.ask(job, "release") == {"ok": None}
    assert world.steps(job)[: len(held)] == held
    world.wait_more(job)
    assert world.end(job)["Restarts"] == "0"
    gone(world, job)


@pytest.mark.release
def test_a_hold_that_nobody_ends_ends_by_itself(world: CriuWorld) -> None:
    world.set_hold(2.0)
    try:
        job = started(world)
    finally:
        world.set_hold(world.hold)
    assert "ok" in world.ask(job, "stop")
    world.standing(job)
    world.wait_more(job)
    assert world.end(job)["Restarts"] == "0"
    gone(world, job)


@pytest.mark.parametrize("held", [True, pytest.param(False, marks=pytest.mark.release)])
def test_scancel_leaves_nothing(world: CriuWorld, held: bool) -> None:
    job = started(world)
    assert "ok" in world.ask(job, "stop" if held else "go")
    world.slurm("scancel", str(job))
    world.wait_job(job, "CANCELLED")
    if held:  # its launcher leaves the images, because a requeue might follow
        swept(world, job)
    gone(world, job)


@pytest.mark.release
def test_signals_reach_the_script_once(world: CriuWorld) -> None:
    job = started(world)
    for times in (1, 2):
        world.slurm("scancel", "--signal=USR1", "--batch", str(job))
        world.wait_for(lambda n=times: world.output(job).count("got USR1") == n, "the signal came")
        if times == 1:
            assert "ok" in world.ask(job, "stop")
            world.move(job)
            world.standing(job)
            world.wait_more(job)
    world.end(job)
    assert world.output(job).count("got USR1") == 2
    gone(world, job)


@pytest.mark.release
def test_a_killed_root_part_takes_the_job_along_and_leaves_it_to_the_sweeper(
    world: CriuWorld,
) -> None:
    job = started(world)
    assert "ok" in world.ask(job, "go")
    host = world.nodes()[world.job(job)["NodeList"]]
    host.run(["pkill", "-KILL", "-f", "^/usr/bin/python3 -I .*slurm-elastic-ckpt-root run"])
    world.wait_for(lambda: world.job(job)["JobState"] == "FAILED", "the job ended")
    left = world.left(job)
    assert left
    assert not [line for line in left if "script" in line and not line.startswith("/")]
    swept = host.run([PROGRAM, "sweep"]).stdout
    assert f"job {job}: removed" in swept
    gone(world, job)


@pytest.mark.release
def test_jobs_without_a_launcher_are_as_they_were(world: CriuWorld) -> None:
    for options in (("--comment=ckpt=none",), ("-N2",)):
        job = world.sbatch('#!/bin/bash\necho "$0"\n', "-o", "out-%j", *options)
        world.wait_job(job)
        assert "slurm_script" in world.output(job)[0]
    interactive = world.slurm("srun", "--chdir=/tmp", "id", "-un", user="alice")
    assert interactive.stdout.strip() == "alice"


def test_what_a_user_tries_with_the_sudo_rule_is_refused(world: CriuWorld) -> None:
    """In a job of hers: other jobs' numbers, forged titles, a second session, other commands.

    ``run`` where it may not drive a job gives way to its script, as the user.
    """
    victim = started(world)
    script = f"""#!/bin/bash
p={PROGRAM}
tries() {{ "$@" >/dev/null 2>&1 && echo "GIVEN: $*"; }}
export SLURM_JOB_ID={victim}
id=(criu 022 /usr/bin/id -u)
[ "$(sudo -n $p run "${{id[@]}}" 2>/dev/null)" = 2000 ] || echo "GIVEN: run"
tries sudo -n $p sweep
tries sudo -n $p
ln -sf /usr/bin/sudo /tmp/slurmstepd
title='slurmstepd: [{victim}.batch]'
[ "$(exec -a "$title" /tmp/slurmstepd -n $p run "${{id[@]}}" 2>/dev/null)" = 2000 ] || echo "GIVEN: title"
tries cat /shared/ckpt/containers/{victim}/images/1/pages-1.img
tries cat /shared/ckpt/containers/{victim}/status.json
tries ls /shared/ckpt/containers/{victim}
tries touch /shared/ckpt/containers/{victim}/request
tries mkdir /shared/ckpt/containers/99
tries cat /etc/slurm-elastic/ckpt.key
echo done
"""
    assert "ok" in world.ask(victim, "go")
    for comment in ("ckpt=none", "ckpt=criu"):
        job = world.sbatch(script, "-o", "out-%j", f"--comment={comment}")
        world.wait_job(job)
        assert world.output(job) == ["done"]
    world.end(victim)
    gone(world, victim)


def test_an_image_that_would_come_back_as_root_is_not_restored(world: CriuWorld) -> None:
    """Forged by somebody who even has the nodes' key: real and effective uid 0, sealed anew."""
    job = started(world)
    assert "ok" in world.ask(job, "stop")
    image = world.shared / "ckpt" / "containers" / str(job) / "images" / "1"
    key = (world.directory / "keys" / "ckpt.key").read_bytes()
    sealed = manifests.read(image, key)
    core = image / f"core-{sealed.pid}.img"
    # creds.proto: uid 2000, gid 2000, euid 2000; a number may be longer than it need be.
    alice = bytes.fromhex("08d00f 10d00f 18d00f")
    assert core.read_bytes().count(alice) == 1
    core.write_bytes(core.read_bytes().replace(alice, bytes.fromhex("088000 10d00f 188000")))
    forged = replace(sealed, files=manifests.digests(image))
    (image / manifests.NAME).write_bytes(manifests.seal(forged, key))
    world.move(job)
    world.standing(job)
    log = json.loads((image.parents[1] / "status.json").read_text())["log"]
    assert "a task with uid 0" in " ".join(log)
    world.wait_more(job)
    (world.shared / "jobs" / f"end-{job}").touch()
    world.wait_job(job)
    assert world.own_output(job)[0] == "start restart=1 args="  # anew, as alice
    gone(world, job)
