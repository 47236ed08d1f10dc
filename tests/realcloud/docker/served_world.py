"""Nodes that can checkpoint, and slurm-elastic-ckptman on the head."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from slurm_elastic.model.checkpoint import Image
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration, RecordedNotice
from slurm_elastic.state.ckptstate.schema import FILE

from .criu_world import PROGRAM, CriuWorld, gone
from .world import PATIENCE

SERVICE = ("env", "PYTHONPATH=/opt/slurm-elastic", "PYTHONDONTWRITEBYTECODE=1", "/usr/bin/python3",
           "-P", "-c", "import sys; from slurm_elastic.cli.services.ckptman import main; sys.exit(main())")  # fmt: skip

SITE_YAML = """\
cluster: {name: containers, uuid: 0b9d3c1e-7f43-4d5b-9a53-3f6f0e3f4a10}
state_dir: /shared/state
clouds:
  - {name: onprem, provider: fake, location: on-premises, partition: static}
pools:
  - {name: rack, cloud: onprem, nodes: "n[1-NODES]", cpus: 2, memory: 1G, real_memory: 1000,
     checkpoint: {method: criu}}
checkpoint: {directory: /shared/ckpt, expected_duration: EXPECTED, MORE}
"""


class ServedWorld(CriuWorld):
    """``serve`` starts the service; what it remembers can be read."""

    def serve(
        self, *, policy: str = "", fault: str = "", more: str = "", expected: str = "10s"
    ) -> None:
        """Start slurm-elastic-ckptman on the head, as SlurmUser, in the place of another.

        ``policy`` is the site's (empty: the default), ``expected`` what a first save may take,
        ``more`` other settings of its checkpoints; ``fault`` kills the service at that point.
        """
        settings = [f"policy: '{policy}'"] if policy else []
        settings += [more] if more else []
        text = SITE_YAML.replace("MORE", ", ".join(settings))
        text = text.replace("EXPECTED", expected).replace("NODES", str(len(self._static)))
        (self.directory / "keys" / "slurm-elastic.yaml").write_text(text)
        self.head.run(["install", "-d", "-o", "slurm", "-g", "slurm", "/shared/state"])
        self.run_service(["env", f"SLURM_ELASTIC_FAULT={fault}", *SERVICE])

    def run_service(self, command: Sequence[str]) -> None:
        """Start the service by that command, after the end of another."""
        log = self.shared / "log" / "ckptman.log"
        self.head.run(["pkill", "-f", "[c]li.services.ckptman"], check=False)
        self.wait_for(lambda: not self.serves(), "the service has ended")
        before = log.read_text().count("serving") if log.exists() else 0
        self.head.start(command, log.name, user="slurm")
        self.wait_for(
            lambda: log.exists() and log.read_text().count("serving") > before, "the service runs"
        )

    def serves(self) -> bool:
        """Whether the service lives."""
        return self.head.run(["pgrep", "-f", "[c]li.services.ckptman"], check=False).returncode == 0

    def migrations(self, job: int) -> Sequence[Migration]:
        """The moves of a job, oldest first."""
        with self.memory() as state:
            return sorted(
                (r for r in state.migrations(since=0.0) if r.run.job == job), key=lambda r: r.began
            )

    def moved(self, job: int, moves: int = 1, patience: float = PATIENCE) -> Migration:
        """Wait until the last of so many moves of a job is over, and the job runs again."""

        def over() -> bool:
            found = self.migrations(job)
            return len(found) == moves and found[-1].is_over

        self.wait_for(over, f"move {moves} of job {job} is over", patience)
        last = self.migrations(job)[-1]
        assert last.step == "back", last
        return last

    def saved(self, job: int) -> tuple[Image, ...]:
        """The images of a job that the service knows to be good, newest first."""
        with self.memory() as state:
            return state.images(job)

    def warned(self) -> Sequence[RecordedNotice]:
        """The notices that stand."""
        with self.memory() as state:
            return state.notices()

    @contextlib.contextmanager
    def memory(self) -> Iterator[CheckpointState]:
        """The service's memory, opened to read."""
        state = CheckpointState(self.shared / "state" / FILE, read_only=True)
        try:
            yield state
        finally:
            state.close()

    def calm(self, *nodes: str) -> None:
        """No notice stands any more, and all nodes are up."""
        for one in self.warned():
            self.ckpt("notice", one.notice.node, "--withdraw")
        self.wait_for(lambda: not self.warned(), "the notices are taken back")

        def up() -> bool:
            self.resume(*nodes)
            count = ("sinfo", "-h", "-t", "idle,mix", "-o", "%D")
            return bool(self.slurm(*count).stdout.split() == [str(len(nodes))])

        self.wait_for(up, "all nodes are up")

    def told(self, job: int) -> str:
        """The journal about a job, without its lines' ends."""
        return " ".join(self.ckpt("explain", str(job)).split())

    def ckpt(self, *words: str) -> str:
        """``slurm-elastic ckpt ...``, as an operator."""
        out: str = self.head.run(["slurm-elastic", "ckpt", *words], user="slurm").stdout
        return out


def swept(world: CriuWorld, job: int) -> None:
    """The sweeper, as its timer starts it, removes the rest of a job that nobody drives."""
    host = next(iter(world.nodes().values()))
    world.wait_for(
        lambda: f"job {job}: removed" in host.run([PROGRAM, "sweep"]).stdout,
        f"the sweeper removes job {job}",
    )
    gone(world, job)
