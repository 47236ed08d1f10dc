"""The names of output files that slurmstepd makes of patterns."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.job_files import files_of
from slurm_elastic.slurm.client.output_names import with_default_name, with_output_names

TASK = SlurmJob(
    id=12, array=10, task=2, states=frozenset(), name="a %j", user="alice", directory="/w/%j"
)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("%A_%a.out", "10_2.out"), ("%j-%x-%u", "12-a %j-alice"), ("%4a.%20j", "0002.0000000012"),
        ("%N.%t", "%N.%t"), ("x", "x"), ("%b-%2b.out", "2-02.out"), ("100%%%j%%j", "100%12%j"),
        (r"\%j%%", "%j%%"), ("slurm-12.out", "slurm-12.out"),
    ],
)  # fmt: skip
def test_a_pattern_is_replaced_once(pattern: str, name: str) -> None:
    job = replace(TASK, output=f"/w/%j/{pattern}", error_output=f"/e/{pattern}")
    named = with_output_names(job)
    assert named.output == f"/w/%j/{name}"
    assert named.error_output == f"/e/{name}"


@pytest.mark.parametrize("error_output", ["", "/w/%j/slurm-12.out", "/e/slurm-12.out"])
def test_the_text_of_squeue_shows_the_default_name_of_a_task_wrongly(error_output: str) -> None:
    job = replace(TASK, output="/w/%j/slurm-12.out", error_output=error_output)
    named = with_output_names(with_default_name(job))
    assert named.output == "/w/%j/slurm-10_2.out"
    assert named.error_output == ("/e/slurm-12.out" if error_output[:2] == "/e" else "")
    alone = replace(job, task=None)
    assert with_default_name(alone) == alone


@pytest.mark.parametrize(("name", "is_known"), [
    ("100%.out", True), ("%j", True), ("%N", False), ("x%3t", False), ("%J", False),
])  # fmt: skip
def test_a_name_that_only_the_machine_knows(name: str, is_known: bool) -> None:
    path = f"/w/{name}"
    assert files_of(replace(TASK, output=path)).outputs == ((path,) if is_known else ())


def test_a_job_without_an_array_has_its_own_number() -> None:
    job = SlurmJob(id=12, states=frozenset(), output="/%A-%a", error_output="/12-4294967294")
    named = with_output_names(job)
    assert (named.output, named.error_output) == ("/12-4294967294", ""), "it is one file"
