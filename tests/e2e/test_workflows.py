"""What docs/workflows.md tells users of workflow tools, with the real tools on real Slurm: their jobs
burst, lose no task to a reclaim, and each result is there once.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pages import Block, replaced, shown

from slurm_elastic.model.cluster import Market
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.ckpt import announce
from tests.e2e.world import PATIENCE, machines, running_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.release]

SUM = str(sum(number * number for number in range(40)))
TOOL_S = 600.0
TOOLS = ("submitit", "dask-jobqueue", "parsl")
PACKAGES = (*TOOLS, "snakemake", "snakemake-executor-plugin-slurm")
LOOPBACK = {
    "SLURMCluster(": "SLURMCluster(scheduler_options={'host': '127.0.0.1'}, ",
    "HighThroughputExecutor(": "HighThroughputExecutor(address='127.0.0.1', ",
}
"""All nodes of the sandbox are this host."""
DIRECTIVES = {
    "nextflow": (
        "-J nf-task", "-o .command.log", "--no-requeue", "--signal B:USR2@30", "-c 2", "-t 00:10:00",
    ),
    "ondemand": ("-J ondemand", "-o output.log", "-t 00:10:00", "-n 2"),
    "batchtools": (
        "--job-name=job1", "--output=job1.log", "--error=job1.log", "--time=10", "--ntasks=1",
        "--cpus-per-task=2", "--mem-per-cpu=100", "--array=1-1",
    ),
}  # fmt: skip
"""What tools that are not here write: Nextflow's SlurmExecutor, the Slurm adapter of Open OnDemand,
and the template ``slurm-simple`` of batchtools.
"""


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """One own node, which is in use, and a cloud whose last nodes never have spot machines."""
    site = sandbox(
        static_nodes=1, drop=("onprem",), suspend_time=60.0,
        elastic={
            "allow": {"partitions": ["default"]},
            "pools": [{"name": "pub", "nodes": "pub[1-6]", "on_demand_nodes": 2}],
        },
    )  # fmt: skip
    blocker = site.submit("sleep 7200", "-c2", "--partition=batch", "--time=1:00:00", user="root")
    running_nodes(site, [blocker])
    return site


@pytest.fixture(scope="module")
def python() -> Iterator[str]:
    """A Python with the tools, which every user can run."""
    directory = Path(tempfile.mkdtemp(prefix="workflows-"))
    directory.chmod(0o755)
    base = shutil.which("python3", path="/usr/bin") or sys.executable
    subprocess.run([base, "-m", "venv", str(directory / "venv")], check=True)
    own = directory / "venv" / "bin" / "python"
    made = subprocess.run(
        [own, "-m", "pip", "install", "--quiet", *PACKAGES],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"pip cannot install {', '.join(PACKAGES)}: {made.stderr.strip()[-200:]}")
    yield str(own)
    shutil.rmtree(directory)


def spot_node(site: Sandbox) -> str | None:
    """A spot machine that runs a job."""
    busy = {node for job in site.jobs() if "RUNNING" in job.states for node in job.nodes}
    spot = (m.instance for m in machines(site) if m.instance.market is Market.SPOT)
    return next((one.node for one in spot if one.node in busy), None)


def reclaim(site: Sandbox, tool: subprocess.Popen[str] | None = None) -> None:
    """Take a spot machine that runs a job. A tool that has ended starts none any more."""

    def found() -> str | None:
        assert tool is None or tool.poll() is None, tool.communicate()
        return spot_node(site)

    node = site.wait_for(found, PATIENCE, "a job runs on a spot machine")
    assert node is not None
    announce(site, node, notice=5.0)


@pytest.mark.parametrize(
    "block",
    [
        shown("docs/workflows.md", "import submitit"),
        shown("docs/workflows.md", "from dask.distributed import Client"),
        shown("docs/workflows.md", "import parsl"),
    ],
    ids=TOOLS,
)
def test_a_tool_bursts_and_loses_no_task_to_a_reclaim(
    site: Sandbox, python: str, block: Block, request: pytest.FixtureRequest
) -> None:
    text = replaced(block.text, LOOPBACK)
    directory = site.work / request.node.callspec.id
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    (directory / "flow.py").write_text(text)
    tool = start(site, [python, "flow.py"], directory, Path(python).parent)
    try:
        reclaim(site, tool)
        out, err = tool.communicate(timeout=TOOL_S)
    finally:
        tool.kill()
    assert tool.returncode == 0, err[-3000:]
    assert SUM in out.split(), (out, err[-3000:])


def start(
    site: Sandbox, command: list[str], directory: Path, *programs: Path
) -> subprocess.Popen[str]:
    """Run the tool as in an activated environment: parsl calls its programs by name."""
    env = {
        "HOME": str(site.work),
        "PATH": ":".join([*map(str, programs), "/usr/bin", "/bin"]),
        "SLURM_CONF": str(site.layout.slurm_conf),
    }
    return subprocess.Popen(
        command, cwd=directory, env=env, user="nobody", group="nogroup", extra_groups=[],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_snakemake_bursts_and_loses_no_step_to_a_reclaim(site: Sandbox, python: str) -> None:
    directory = site.work / "snakemake"
    programs = directory / "programs"
    programs.mkdir(parents=True)
    directory.chmod(0o777)
    (directory / "Snakefile").write_text(shown("docs/workflows.md", "rule all:").text)
    # The plugin drops SLURM_CONF. At a site srun finds slurm.conf without it.
    srun = programs / "srun"
    srun.write_text(f'#!/bin/sh\nSLURM_CONF={site.layout.slurm_conf} exec /usr/bin/srun "$@"\n')
    srun.chmod(0o755)
    (line,) = shown("docs/workflows.md", "snakemake --executor slurm").lines
    # The sandbox has no accounting.
    command = [*line.split(), "--slurm-status-command", "squeue"]
    tool = start(site, command, directory, programs, Path(python).parent)
    try:
        reclaim(site, tool)
        out, err = tool.communicate(timeout=TOOL_S)
    finally:
        tool.kill()
    assert tool.returncode == 0, (out[-1000:], err[-3000:])
    expected = sum(number * number for number in range(12))
    assert (directory / "sum.txt").read_text().split() == [str(expected)]


def test_an_array_bursts_and_loses_no_task_to_a_reclaim(site: Sandbox) -> None:
    (line,) = shown("docs/workflows.md", "sbatch --array=1-40%20").lines
    task = "#!/bin/sh\nsleep 3\necho $SLURM_ARRAY_TASK_ID > draft-$SLURM_ARRAY_TASK_ID\n"
    task += "mv draft-$SLURM_ARRAY_TASK_ID result-$SLURM_ARRAY_TASK_ID\n"
    (site.work / "task.sh").write_text(task)
    done = site.run(["sh", "-c", f"cd {site.work} && {line}"], user="nobody", check=False)
    assert done.returncode == 0, done.stderr
    reclaim(site)
    results = [site.work / f"result-{number}" for number in range(1, 41)]
    site.wait_for(lambda: all(path.exists() for path in results), TOOL_S, "all tasks have ended")


@pytest.mark.parametrize(
    ("tool", "more", "markets"),
    [
        ("nextflow", (), {Market.ON_DEMAND}),
        ("nextflow", ("--comment=spot=ok",), set(Market)),
        ("ondemand", ("--no-requeue",), {Market.ON_DEMAND}),
        ("batchtools", (), set(Market)),
    ],
)
def test_a_job_with_the_directives_of_a_tool_that_is_not_here_bursts(
    site: Sandbox, tool: str, more: tuple[str, ...], markets: set[Market]
) -> None:
    lines = "".join(f"#SBATCH {option}\n" for option in (*DIRECTIVES[tool], *more))
    # As Open OnDemand submits it.
    command = ["sbatch", "--parsable", "-D", str(site.work)]
    done = site.run(command, user="nobody", stdin=f"#!/bin/bash\n{lines}sleep 600\n")
    job = int(done.stdout.split(";")[0])
    (node,) = running_nodes(site, [job])[job]
    found = {m.instance.market for m in machines(site) if m.instance.node == node}
    assert found
    assert found <= markets
    site.run(["scancel", str(job)])


def test_the_page_has_the_option_that_lets_nextflow_use_spot() -> None:
    config = shown("docs/workflows.md", "process {").text
    assert "clusterOptions = '--comment=spot=ok'" in config
