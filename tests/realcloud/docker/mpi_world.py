"""Jobs of several nodes: an MPI program that saves itself, by each of Debian's two MPIs, on Slurm.

The program (mpi/heat.c) writes a set of files, one for each rank, and a file that names the set when
it is whole. It has a witness of its steps: one that is there twice was work that was done twice.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from .engine import Engine
from .served_world import ServedWorld
from .world import USER

HERE = Path(__file__).parent / "mpi"
STARTS = {
    "openmpi": "srun --mpi=pmix heat.openmpi",
    "mpich": "srun --mpi=pmi2 heat.mpich",
}
"""By each MPI: how its ranks are started."""
RANKS = 3
ROWS, STEPS, PAUSE = 48, 120, 50
HOLD = 30
"""A test lets it go on after so many steps, and so on."""
COMMENT = "--comment=ckpt=signal,saved=file:heat-%j/complete,stop_signal=USR2"
SCRIPT = f"""\
#!/bin/bash
mkdir heat-$SLURM_JOB_ID 2>/dev/null && echo MOST >heat-$SLURM_JOB_ID/hold
START {ROWS} {STEPS} {PAUSE} heat-$SLURM_JOB_ID & solver=$!
trap 'kill -USR1 $solver' USR1
trap 'kill -USR2 $solver' USR2
wait $solver
while code=$?; kill -0 $solver 2>/dev/null; do wait $solver; done
echo "ranks ended: $code"
[ $code -eq 0 ] || sleep 600
exit $code
"""
"""It keeps an error to itself for a while: Slurm may not know yet that a node is lost."""


def image(engine: Engine, release: str) -> str:
    """The image of a Slurm host with the MPIs and the program, built if need be."""
    return engine.on_top(engine.image(release), "mpi", HERE)


class MpiWorld(ServedWorld):
    """Four nodes of a processor each, and the service."""

    def __init__(self, engine: Engine, image: str) -> None:
        super().__init__(engine, image, nodes=RANKS + 1, cpus=1)

    def solver(self, start: str, *options: str, most: int = HOLD) -> int:
        """A job of three nodes; ``start`` begins its ranks, which do ``most`` steps for now."""
        script = SCRIPT.replace("START", start).replace("MOST", str(most))
        spread = ("-N", str(RANKS), "--ntasks-per-node=1", "--open-mode=append")
        return self.sbatch(script, *spread, "-o", "out-%j", *options)

    def place(self, job: int) -> Path:
        """Where it keeps its sets."""
        return self.shared / "jobs" / f"heat-{job}"

    def witness(self, job: int) -> list[int]:
        """The steps in the order in which they were done."""
        path = self.place(job) / "witness"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def let_go(self, job: int, most: int = STEPS) -> None:
        """Let the job do so many steps, and wait until it has, or is at its end."""
        place = f"/shared/jobs/heat-{job}/hold"
        words = f"echo {most} >{place}.new && mv {place}.new {place}"
        self.head.run(["sh", "-c", words], user=USER)
        self.wait_held(job, most)

    def wait_held(self, job: int, most: int = HOLD) -> None:
        """Wait until the job has done so many steps; its ranks do not end before."""

        def done() -> bool:
            if self.witness(job)[-1:] == [most - 1]:
                return True
            ended = self.ends(job)
            assert ended <= (int(self.job(job)["Restarts"]) if ended else 0), self.output(job)
            return False

        self.wait_for(done, f"{most} steps of job {job}")

    def wait_begun(self, job: int, runs: int) -> None:
        """Wait until that run of the job is at work."""
        self.wait_for(lambda: len(self.begun(job)) == runs, f"run {runs} of job {job} begins")

    def keep_set(self, job: int) -> None:
        """Have the job saved where it is."""
        known = len(self.saved(job))
        self.ckpt("now", str(job))
        self.wait_for(lambda: len(self.saved(job)) > known, f"job {job} is saved, and goes on")

    def replace_node(self, node: str) -> None:
        """Another machine for a node whose machine is gone."""
        for one in self.warned():
            self.ckpt("notice", one.notice.node, "--withdraw")
        self.start_node(node)
        idle = ("sinfo", "-h", "-n", node, "-t", "idle", "-o", "%D")

        def up() -> bool:
            self.resume(node)
            return bool(self.slurm(*idle).stdout.split() == ["1"])

        self.wait_for(up, f"node {node} is up")

    def twice(self, job: int) -> list[int]:
        """The steps that were done more than once; all others are there, and once."""
        counts = Counter(self.witness(job))
        assert sorted(counts) == list(range(STEPS))
        return sorted(step for step, count in counts.items() if count > 1)

    def begun(self, job: int) -> list[tuple[int, set[str]]]:
        """From which step each of its runs began, and on which nodes."""
        lines = [line.split() for line in self.output(job) if line.startswith("begins at step")]
        return [(int(words[3]), set(words[5:])) for words in lines]

    def ends(self, job: int) -> int:
        """How often its ranks ended with an error, of which the batch script tells."""
        told = (re.fullmatch(r"ranks ended: [1-9]\d*", line) for line in self.output(job))
        return sum(line is not None for line in told)

    def answer(self, job: int) -> str:
        """The hash of all bits of the result."""
        (line,) = [line for line in self.output(job) if line.startswith("answer ")]
        return line

    def batch_host(self, job: int) -> str:
        return self.job(job)["BatchHost"]

    def node_list(self, job: int) -> list[str]:
        """The nodes of a job, as Slurm has them."""
        listed = self.job(job)["NodeList"]
        return self.slurm("scontrol", "show", "hostnames", listed).stdout.split()

    def make_read_only(self, node: str, job: int) -> None:
        """Mount that job's directory of sets read-only on the node."""
        place = f"/shared/jobs/heat-{job}"
        mount = f"mount --bind {place} {place} && mount -o remount,ro,bind {place}"
        host = self.nodes()[node]
        host.run(["sh", "-c", mount])
        assert host.run(["touch", f"{place}/new"], user=USER, check=False).returncode != 0
