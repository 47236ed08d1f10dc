"""GPUs on real Slurm: their devices are in gres.conf, jobs get them by number, and the gate compares
them with what nvidia-smi says. The devices are /dev/null by other names, and nvidia-smi is a script.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.ckpt import kinds
from tests.e2e.world import PATIENCE, Until, ledger, machines, running_nodes

pytestmark = pytest.mark.e2e
CHECK = Path(__file__).parents[2] / "etc" / "slurm-elastic-gpu-check"
T4 = "GPU {n}: Tesla T4 (UUID: GPU-0000-{n})\n"
A100 = "GPU 4: NVIDIA A100-SXM4-40GB (UUID: GPU-0000-4)\n" + "".join(
    f"  MIG 3g.20gb     Device  {n}: (UUID: MIG-0000-{n})\n" for n in range(2)
)
"""A GPU in two instances: all machines of the sandbox are this one, which has both kinds."""
ALL = "".join(T4.format(n=n) for n in range(4)) + A100


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="se-gpu-", dir="/tmp"))
    made.chmod(0o755)
    for name in (*(f"nvidia{n}" for n in range(5)), "cap21", "cap22", "cap31", "cap32"):
        # slurmd takes nothing but devices; these are /dev/null by other names.
        os.mknod(made / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (made / "nvidia-smi").write_text(f"#!/bin/sh\ncat {made}/listed\n")
    (made / "nvidia-smi").chmod(0o755)
    (made / "listed").write_text(ALL)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox], place: Path) -> Sandbox:
    size = {
        "cpus": 4,
        "memory": 1256,
        "real_memory": 1000,
        "cloud": "aws",
        "markets": ["on-demand"],
    }
    halves = [f"{place}/nvidia4,{place}/cap[{n}1-{n}2]" for n in (2, 3)]
    types = {
        "g4dn.12xlarge": {"cpus": 48, "memory": 196608, "price": 3.912, "gres": {"gpu:t4": 4}},
        "p4d.24xlarge": {
            "cpus": 96,
            "memory": 1179648,
            "price": 32.77,
            "gres": {"gpu:a100_3g.20gb": 2},
        },
    }
    return sandbox(
        static_nodes=1, drop=("onprem", "pub"), dead_man=3600.0, resume_timeout=90.0,
        check=f"{sys.executable} {CHECK} --gres gpu:t4:4,gpu:a100_3g.20gb:2 --nvidia-smi {place}/nvidia-smi",
        elastic={
            "limits": {"dollars_per_hour": 100.0},
            "clouds": [{"name": "aws", "types": types}],
            "pools": [
                {"name": "gpu", "nodes": "gpu[1-2]", "gres": {"gpu:t4": 4},
                 "devices": {"gpu:t4": [f"{place}/nvidia[0-3]"]}, "instance_types": ["g4dn.12xlarge"], **size},
                {"name": "mig", "nodes": "mig1", "gres": {"gpu:a100_3g.20gb": 2},
                 "devices": {"gpu:a100_3g.20gb": halves}, "instance_types": ["p4d.24xlarge"], **size},
            ],
        },
    )  # fmt: skip


def told(site: Sandbox, job: int) -> tuple[str, str, str]:
    """The GPUs that a job has seen which ran ``env``: for CUDA, by their numbers, how many."""
    lines = (site.work / f"slurm-{job}.out").read_text().splitlines()
    seen = dict(line.split("=", 1) for line in lines if "=" in line)
    return seen["CUDA_VISIBLE_DEVICES"], seen["SLURM_JOB_GPUS"], seen["SLURM_GPUS_ON_NODE"]


def test_jobs_get_the_gpus_that_they_ask_for_and_none_that_another_has(site: Sandbox) -> None:
    held = Until(site)
    script = f"env; {held.script}"
    wide = site.submit(script, "--gres=gpu:t4:2", "-c1")
    (nodes,) = running_nodes(site, [wide]).values()
    narrow = site.submit(script, "--gres=gpu:1", "-c1", f"--nodelist={nodes[0]}", "--partition=aws")
    running_nodes(site, [wide, narrow])
    assert nodes == ["gpu1"]
    held.go()
    for job in (wide, narrow):
        site.wait_job(job)
    assert told(site, wide) == ("0,1", "0,1", "2")
    assert told(site, narrow)[:2] == ("2", "2")


@pytest.mark.release
def test_parts_of_a_gpu_are_gres_of_their_own_type(site: Sandbox) -> None:
    held = Until(site)
    jobs = [
        site.submit(f"env; {held.script}", "--gres=gpu:a100_3g.20gb:1", "-c1") for _ in range(2)
    ]
    assert set(map(tuple, running_nodes(site, jobs).values())) == {("mig1",)}
    held.go()
    for job in jobs:
        site.wait_job(job)
    assert {told(site, job)[1:] for job in jobs} == {("0", "1"), ("1", "1")}


@pytest.mark.release
def test_a_slurmd_without_files_of_its_own_gets_gres_conf_and_ours_from_the_head(
    site: Sandbox,
) -> None:
    port, socket = site.layout.read().ports.slurmctld, f"{site.layout.dir}/run/munge.socket"
    program = (
        "mount -t tmpfs tmpfs /run && mkdir -p /run/munge /run/slurm &&"
        f" ln -s {socket} /run/munge/munge.socket.2 &&"
        f" env -u SLURM_CONF slurmd -G -N gpu2 --conf-server 127.0.0.1:{port}"
    )
    done = site.run(["unshare", "--mount", "sh", "-c", program])
    assert "Gres Name=gpu Type=t4 Count=4" in done.stdout + done.stderr


@pytest.mark.release
def test_a_machine_with_too_few_gpus_gets_no_job_and_says_which_it_has(
    site: Sandbox, place: Path
) -> None:
    site.wait_for(lambda: not machines(site), 2 * PATIENCE, "no machine is left")
    (place / "listed").write_text(T4.format(n=0) + A100)
    from_start = len(kinds(site, "pool:gpu"))
    job = site.submit("true", "--gres=gpu:t4:1")
    site.wait_for(
        lambda: "boot-failed" in kinds(site, "pool:gpu")[from_start:], 3 * PATIENCE, "it failed"
    )
    book = ledger(site)
    reasons = [str(d.reason) for d in book.decisions.about("pool:gpu") if d.kind == "boot-failed"]
    book.close()
    assert "nvidia-smi -L has 2 x MIG 3g.20gb; 1 x Tesla T4; the node shall have" in reasons[-1]
    assert "4 x gpu:t4" in reasons[-1]
    (place / "listed").write_text(ALL)
    site.run(["scancel", str(job)])
