"""Jobs that slurmctld would end at its next start stand in the way of an install."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client import controller
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.slurm.conf import fragment, leaving
from slurm_elastic.slurm.conf.leaving import LeavingCosts, NodesAndPartitions

RUNS, WAITS = frozenset({"RUNNING"}), frozenset({"PENDING"})
GPU = {"gpu:a100": 2}


def hindrances(
    monkeypatch: pytest.MonkeyPatch, departing: NodesAndPartitions, *jobs: SlurmJob
) -> tuple[str, ...]:
    monkeypatch.setattr(leaving, "SlurmCli", lambda _: FakeSlurm(jobs=jobs))
    return leaving.hindrances(
        SlurmSettings(), departing, up=True, costs=LeavingCosts(), force=False
    )


@pytest.mark.parametrize(
    ("job", "is_hindrance"),
    [
        (SlurmJob(id=7, states=WAITS, partitions=("site", "aws"), required=("c1",)), True),
        (SlurmJob(id=7, states=WAITS, partitions=("aws",), required=("c2",)), False),
        (SlurmJob(id=7, states=WAITS, partitions=("aws",), excluded=("c1",)), False),
    ],
)
def test_a_waiting_job_that_requires_a_node_which_leaves_is_a_hindrance(
    monkeypatch: pytest.MonkeyPatch, job: SlurmJob, is_hindrance: bool
) -> None:
    found = hindrances(monkeypatch, NodesAndPartitions(nodes=frozenset({"c1"})), job)
    assert len(found) == is_hindrance
    for sentence in found:
        assert sentence.startswith("job 7 is waiting for cloud nodes that leave (--nodelist)")


@pytest.mark.parametrize(
    ("request_of_job", "is_hindrance"),
    [
        ({"gres": "gres:gpu:1"}, True),
        ({"job_gres": "gres:gpu:1"}, True),
        ({"allocated": "cpu=1,gres/gpu=1"}, True),
        ({"allocated": "cpu=1"}, False),
    ],
)
def test_a_job_is_a_hindrance_to_other_gres_of_its_node_if_it_uses_gres(
    monkeypatch: pytest.MonkeyPatch, request_of_job: dict[str, str], is_hindrance: bool
) -> None:
    job = SlurmJob(id=7, states=RUNS, partitions=("aws",), nodes=("c1",), **request_of_job)  # type: ignore[arg-type]
    found = hindrances(monkeypatch, NodesAndPartitions(other_gres=frozenset({"c1"})), job)
    assert len(found) == is_hindrance
    for sentence in found:
        assert sentence.startswith("job 7 is using gres of cloud nodes (c1) whose gres change")


def test_a_partition_leaves_although_a_job_starts_and_comes_back_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    updates: list[tuple[str, ...]] = []

    class Slurm(SlurmCli):
        def jobs(self, *, ended: bool = False) -> tuple[SlurmJob, ...]:
            lists = {6: ("main", "aws"), 7: ("main", "aws"), 8: ("aws", "gpu"), 9: ("main", "gpu")}
            return tuple(SlurmJob(id=n, states=WAITS, partitions=p) for n, p in lists.items())

        def _run(self, *command: str) -> str:
            updates.append(command[1:])
            if any("7" in word for word in command):
                raise SlurmError(
                    command, 1, "slurm_update error: Job is no longer pending execution"
                )
            return ""

    monkeypatch.setattr(leaving, "SlurmCli", Slurm)
    departing = NodesAndPartitions(partitions=frozenset({"aws"}))

    def leave() -> None:
        with leaving.lists_restored_on_failure(SlurmSettings()) as lists:
            leaving.prepare_jobs(SlurmSettings(), departing, lists, up=True, costs=LeavingCosts())
            raise SlurmError((), 1, "a restart that failed")

    with pytest.raises(SlurmError, match="a restart that failed"):
        leave()
    assert updates[:2] == [
        ("update", "jobid=6,7", "partition=main"), ("update", "jobid=8", "partition=gpu"),
    ]  # fmt: skip
    assert updates[2:] == [
        ("update", "jobid=6,7", "partition=main,aws"), ("update", "jobid=8", "partition=aws,gpu"),
    ]  # fmt: skip


NODE = (
    "NodeName={name} Arch=x86_64 CPUAlloc=0 CPUTot=4 CPULoad=0.1 AvailableFeatures=aws,{feature}"
    " Gres=gpu:a100:2(S:0-1),fpga:1K NodeAddr={name} RealMemory=1000 State=IDLE+CLOUD Weight=7"
    " Reason=CPUTot=99 is wrong [root@x] Comment=Gres=none"
)


def test_values_that_the_running_slurmctld_has_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The installed files may have the new values already, and slurmctld may not."""
    answer = "\n".join(NODE.format(name=name, feature="burst") for name in ("c1", "c2", "site"))
    monkeypatch.setattr(controller, "is_up", lambda _: True)
    monkeypatch.setattr(controller, "_scontrol", lambda *_: answer)
    monkeypatch.setattr(leaving, "features", lambda _: ("burst", "aws"))
    pool = Pool(
        name="burst", cloud="aws", nodes=("c1", "c2", "new"), cpus=4, real_memory=1000,
        gres=GPU | {"fpga": 1024}, markets=(Market.SPOT,),
    )  # fmt: skip
    assert not leaving.changed_in_running(SlurmSettings(), [pool])
    other = replace(pool, cpus=2, real_memory=900, gres={})
    assert [str(change) for change in leaving.changed_in_running(SlurmSettings(), [other])] == [
        "changes CPUs of c[1-2]: 4 -> 2",
        "changes RealMemory of c[1-2]: 1000 -> 900",
        "changes Gres of c[1-2]: gpu:a100:2,fpga:1024 -> none",
    ]


@pytest.mark.parametrize(
    ("installed", "gres", "changed"),
    [
        ("CPUs=8 Gres=gpu:a100:2", GPU, ()),
        ("CPUs=8 Gres=nic:1,gpu:a100:2", {**GPU, "nic": 1}, ()),
        ("CPUs=8 Gres=gpu:a100:4", GPU, ("c1", "c2")),
        ("CPUs=8", GPU, ("c1", "c2")),
        ("CPUs=8 Gres=gpu:a100:2", {}, ("c1", "c2")),
        ('CPUs=8 Gres=""', {}, ()),
        ("CPUs=8", {}, ()),
    ],
)
def test_nodes_with_other_gres_than_the_installed_are_found(
    tmp_path: Path, installed: str, gres: dict[str, int], changed: tuple[str, ...]
) -> None:
    (tmp_path / fragment.FILE_NAME).write_text(f"NodeName=c[1-2] {installed} State=CLOUD\n")
    pool = Pool(
        name="burst", cloud="aws", nodes=("c1", "c2", "new"), cpus=8, real_memory=1000, gres=gres,
        markets=(Market.SPOT,),
    )  # fmt: skip
    assert leaving.with_other_gres(tmp_path, [pool]) == set(changed)
