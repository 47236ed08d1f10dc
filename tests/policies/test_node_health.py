"""Which drains are Slurm's own, whose fault they are, and what is to be done."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.model.slurm_words.node_causes import CAUSES, Strike
from slurm_elastic.policies.nodes.out_of_service import DrainTerms, ill, known_illness
from slurm_elastic.policies.repair.book_rules import is_up

TERMS = DrainTerms(slurm_user="slurm")
LOW = "Low RealMemory (reported:22987 < 90.00% of configured:30000)"

SAID = {
    LOW: (Strike.POOL, "set `real_memory: 22900` in the pool (slurmd reports 22987 MiB)"),
    "Low RealMemory (reported:64 < 100.00% of configured:128)": (Strike.POOL, "real_memory: 64`"),
    "Low RealMemory": (Strike.POOL, "slurmd -C"),
    "Low socket*core*thread count": (Strike.POOL, "`cpus`"),
    "Low socket*core*thread count, Low CPUs": (Strike.POOL, "`cpus`"),
    f"Low CPUs, {LOW}": (Strike.POOL, "real_memory: 22900"),
    "CoreSpec differ": (Strike.POOL, "`cpus`"),
    "Low TmpDisk": (Strike.POOL, "TmpDisk"),
    "gres/gpu count reported lower than configured (0 < 1)": (Strike.POOL, "machines have 0"),
    "gres/gpu count too low (1 < 4)": (Strike.POOL, "machines have 1"),
    "Could not unpack gres data": (Strike.POOL, "release of Slurm"),
    "Prolog error": (Strike.POOL, "Prolog"),
    "Job env setup error": (Strike.POOL, "Prolog"),
    "Epilog error": (Strike.MACHINE, "slurmd's log"),
    "Prolog/Epilog failure": (Strike.MACHINE, "slurmd's log"),
    "slurm-elastic gate: exit 3: disk sda fails": (Strike.POOL, "join.check"),
    "SlurmdSpoolDir is full": (Strike.MACHINE, "disk"),
    "Node unexpectedly rebooted": (Strike.MACHINE, ""),
    "kernel update : reboot issued : reboot timed out": (Strike.MACHINE, ""),
    "new kernel, see ticket : reboot issued : reboot timed out": (Strike.MACHINE, ""),
    "reboot timed out": (Strike.MACHINE, ""),
    "Kill task failed": (Strike.MACHINE, ""),
    "batch job complete failure": (Strike.MACHINE, "slurmd's log"),
    "Duplicate jobid": (Strike.MACHINE, "slurmd's log"),
    f"Prolog error, {LOW}": (Strike.POOL, "Prolog fails on these machines: slurmd's log there"),
}


def node(reason: str, user: str = "slurm", *states: str) -> SlurmNode:
    words = frozenset(states or ("IDLE", "DRAIN", "CLOUD"))
    return SlurmNode(name="pub1", states=words, reason=reason, reason_user=user)


@pytest.mark.parametrize(
    ("reason", "user", "states", "up"),
    [
        ("", "", ("IDLE", "CLOUD"), True),
        ("", "", ("ALLOCATED", "CLOUD", "POWERING_UP"), False),
        ("", "", ("DOWN", "CLOUD"), False),
        (LOW, "slurm", ("IDLE", "DRAIN", "CLOUD"), False),
        ("disk", "alice", ("IDLE", "DRAIN", "CLOUD"), True),
    ],
    ids=["registered", "boots", "lost", "too small", "drained by a person"],
)
def test_a_machine_is_up_when_slurm_takes_it_as_it_is(
    reason: str, user: str, states: tuple[str, ...], up: bool
) -> None:
    assert is_up(node(reason, user, *states), TERMS) is up
    assert not is_up(None, TERMS)


@pytest.mark.parametrize("reason", SAID)
def test_what_slurm_says_has_a_cause_a_strike_and_a_remedy(reason: str) -> None:
    strike, remedy = SAID[reason]
    for user in ("slurm", "root", ""):
        found = ill(node(reason, user), TERMS)
        assert found is not None
        assert (found.slurm_reason, found.strike) == (reason, strike)
        assert remedy in found.remedy
        assert str(found).startswith(f"{reason}: {found.meaning}")


def test_every_cause_of_the_table_is_tried_here() -> None:
    told = {one.meaning for reason in SAID if (one := known_illness(reason)) is not None}
    assert told == {cause.meaning for cause in CAUSES}


def test_the_table_for_people_has_every_cause() -> None:
    page = (Path(__file__).parents[2] / "docs" / "node-health.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    for cause in CAUSES:
        (row,) = [line for line in rows if f"| {cause.meaning} |" in line]
        counts = "its pool" if cause.strike is Strike.POOL else "nothing"
        assert f"| {counts} |" in row


@pytest.mark.parametrize(
    "reason",
    [
        "", "fan broken", "Low RealMemory, says Ann", "low memory", "prolog error seen by Bob",
        "Prolog errors", "gres/gpu is broken", "Node unexpectedly rebooted again, ask Bob",
        "slurm-elastic:hold:no room", "NHC: check_fs: / is full", "Reboot ASAP", "reboot complete",
        "kernel : reboot issued", "reboot timed out, says Ann",
        "Not responding", "ResumeTimeout reached",
    ],
)  # fmt: skip
def test_a_persons_reason_is_nobody_elses(reason: str) -> None:
    """Nor ours; and those that end by themselves, or by other rows, are not told here."""
    assert ill(node(reason), TERMS) is None


def test_slurms_own_words_by_another_user_are_that_persons() -> None:
    assert ill(node(LOW, "ann"), TERMS) is None
    assert ill(node(LOW, "slurm"), DrainTerms(slurm_user="hpcslurm")) is None
    assert ill(node(LOW, "hpcslurm"), DrainTerms(slurm_user="hpcslurm")) is not None


def test_the_site_says_which_reasons_of_a_health_check_belong_to_the_machine() -> None:
    declared = DrainTerms(replace_reasons=("NHC: *", "disk check failed"))
    mounts = "NHC: check_fs_mount: /scratch not mounted"
    for reason in (mounts, "disk check failed"):
        found = ill(node(reason, "root"), declared)
        assert found is not None
        assert (found.slurm_reason, found.strike) == (reason, Strike.POOL)
        assert ill(node(reason, "root"), TERMS) is None
        assert ill(node(reason, "ann"), declared) is None, "a person may use the check's words"
    assert ill(node("nhc: odd", "root"), declared) is None
    assert ill(node(mounts, "root", "IDLE", "CLOUD"), declared) is None, "it is in service"


@pytest.mark.parametrize(("states", "is_ill"), [
    (("IDLE", "CLOUD"), False), (("DOWN", "CLOUD"), True), (("MIXED", "CLOUD"), False),
    (("ALLOCATED", "DRAIN"), True), (("IDLE", "DRAIN", "INVALID_REG"), True),
])  # fmt: skip
def test_a_reason_that_was_left_on_a_node_in_service_counts_for_nothing(
    states: tuple[str, ...], is_ill: bool
) -> None:
    assert (ill(node(LOW, "slurm", *states), TERMS) is not None) is is_ill
