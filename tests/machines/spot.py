"""A spot machine of EC2 is taken, and its job goes on on another one's kernel, which booted later,
with its clocks, by which Python and Java wait; homes and images are on the head's NFS.
``test_trixie_head.py`` runs this on a head of Debian trixie, by ``trixie``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.ec2.cloud import MachineView
from slurm_elastic.sandbox.hypervisor import settings
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration, RecordedNotice
from slurm_elastic.state.ckptstate.schema import FILE
from tests.e2e.world import Until, live_machines
from tests.machines.nfs import HOME, SHARED, lines, nfs

pytestmark = [pytest.mark.machines, pytest.mark.e2e, pytest.mark.timeout(6000)]

IMAGE = "SLURM_ELASTIC_MACHINES_IMAGE"
BOOT = 1700.0
PATIENCE = 600.0
NOTICE = 1200.0
WORDS = ("step", "turn", "tick")
"""The lines of the shell, of Python and of Java."""
COUNTER = """\
#!/bin/bash
python3 - "end-$SLURM_JOB_ID" <<'END' &
import os, sys, threading, time
event, until, last = threading.Event(), time.monotonic() + 7200, time.monotonic()
turn = 0
while not os.path.exists(sys.argv[1]):
    event.wait(0.5)
    now = time.monotonic()
    print("turn", turn, last <= now < until, flush=True)
    turn, last = turn + 1, now
END
cat >"$TMPDIR/Ticks.java" <<'END'
import java.nio.file.*;
import java.util.concurrent.*;
public class Ticks {
  static long last = System.nanoTime(), until = last + 7_200_000_000_000L;
  static int tick;
  static void tick() {
    long now = System.nanoTime();
    System.out.println("tick " + tick++ + (last <= now && now < until ? " True" : " False"));
    last = now;
  }
  public static void main(String[] words) throws Exception {
    ScheduledExecutorService pool = Executors.newScheduledThreadPool(1);
    pool.scheduleAtFixedRate(Ticks::tick, 0, 500, TimeUnit.MILLISECONDS);
    BlockingQueue<String> empty = new LinkedBlockingQueue<>();
    while (!Files.exists(Path.of(words[0]))) empty.poll(500, TimeUnit.MILLISECONDS);
    pool.shutdown();
    pool.awaitTermination(1, TimeUnit.MINUTES); } }
END
( cd "$TMPDIR" # the compiler is in the module that Debian's JRE has, too
  java -Xmx96m -m jdk.compiler/com.sun.tools.javac.Main Ticks.java ) &&
    java -Xmx32m -XX:+UseSerialGC -cp "$TMPDIR" Ticks "end-$SLURM_JOB_ID" &
for ((step = 0; ; step++)); do
    [ ! -e "end-$SLURM_JOB_ID" ] || break
    echo "step $step $(</proc/sys/kernel/random/boot_id)"
    echo "note $step" >>"$TMPDIR/notes"
    sleep 0.5
done
wait
echo "notes $(wc -l <"$TMPDIR/notes")"
echo finished
"""


def machine_of(site: Sandbox, node: str) -> MachineView:
    (found,) = [m for m in live_machines(site) if m.node == node]
    return found


def runs(site: Sandbox, job: int) -> str:
    """The node on which the job is by now; empty while it is on its way."""
    shown = site.job(job)
    return shown["NodeList"] if shown["JobState"] == "RUNNING" else ""


def moves(site: Sandbox, job: int) -> list[Migration]:
    state = CheckpointState(site.layout.dir / "state" / FILE, read_only=True)
    try:
        return [m for m in state.migrations(since=0.0) if m.run.job == job]
    finally:
        state.close()


def heard(site: Sandbox) -> list[RecordedNotice]:
    state = CheckpointState(site.layout.dir / "state" / FILE, read_only=True)
    try:
        return list(state.notices())
    finally:
        state.close()


def kernels(job: int) -> set[str]:
    """The kernels under which it has counted, by their boots."""
    return {words[2] for words in lines(job, "step") if len(words) == 3}


def counts(site: Sandbox) -> int:
    """A job of plain sbatch that has begun to count on a machine of the cloud."""
    others = Until(site)
    site.submit(others.script, user="alice")
    job = site.submit(COUNTER, f"--chdir={HOME}", "--output=out-%j", user="alice")
    site.wait_for(
        lambda: min(len(lines(job, word)) for word in WORDS) > 3, BOOT, "it counts", period=2.0
    )
    return job


def interrupted(site: Sandbox, job: int) -> Migration:
    """The job's machine is told by its own metadata service that it is taken, and nobody else hears
    of it; the job counts on on another one.
    """
    first, restarts = runs(site, job), int(site.job(job)["Restarts"])
    taken = machine_of(site, first)
    assert taken.market == "spot"
    site.ec2.interrupt([taken.id], notice=NOTICE)
    site.wait_for(lambda: moves(site, job), PATIENCE, "the machine's own word is heard")
    (told,) = heard(site)  # clouds are not asked, and there is no queue
    assert told.source == "notices on Slurm's nodes"
    assert told.notice.instance == taken.id
    site.wait_for(lambda: moves(site, job)[-1].is_over, BOOT, "the job is back", period=2.0)
    (move,) = moves(site, job)
    assert move.step == "back"
    assert move.threatened == (first,)
    site.wait_for(lambda: len(kernels(job)) == 2, PATIENCE, "it counts on on another kernel")
    assert runs(site, job) not in ("", first)
    for word in WORDS:
        before = len(lines(job, word))
        site.wait_for(
            lambda w=word, n=before: len(lines(job, w)) > n + 3, PATIENCE, f"{word} goes on, too"
        )
    assert int(site.job(job)["Restarts"]) == restarts + 1  # a first boot may have come too late
    return move


def ends(site: Sandbox, job: int) -> None:
    """It comes to its end; each line is there once."""
    (HOME / f"end-{job}").touch()
    site.wait_job(job, timeout=PATIENCE)
    steps = lines(job, "step")
    assert [int(step) for _, step, _ in steps] == list(range(len(steps)))
    for word in WORDS[1:]:
        found = lines(job, word)
        assert found == [[word, str(n), "True"] for n in range(len(found))], "one clock"
    assert lines(job, "notes") == [["notes", str(len(steps))]]
    images = SHARED / "slurm-elastic" / "sandbox" / str(job)
    site.wait_for(lambda: not [*images.rglob("*")], PATIENCE, "its images are removed")


def test_a_job_is_saved_on_one_kernel_and_goes_on_on_another(
    sandbox: Callable[..., Sandbox], tmp_path: Path
) -> None:
    notices = {"poll_clouds": False, "poll_interval": 1.0}
    pool = {"name": "pub", "nodes": "pub[1-2]", "markets": ["spot"],
            "checkpoint": {"method": "criu"}}  # fmt: skip
    with nfs(tmp_path):
        site = sandbox(
            static_nodes=1, drop=("onprem",), suspend_time=60.0, groups=("alice",),
            elastic={"checkpoint": {"directory": f"{SHARED}/slurm-elastic", "notices": notices},
                     "pools": [pool]},
            **settings(Path(os.environ[IMAGE])),
        )  # fmt: skip
        job = counts(site)
        move = interrupted(site, job)
        assert move.image is not None
        assert move.deadline is not None
        assert move.reached["saved"] < move.deadline
        ends(site, job)
        assert [path.name for path in HOME.parent.iterdir()] == ["alice"], "no login's home"
