"""Which image a pool's machines start from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.policies.launch.images import Candidate, lacks, newest, none_fits, software_of

OLD = Candidate(
    id="ami-old", name="debian-12-slurm-v1", created=100.0, os="debian", version="12.5",
    software=frozenset({"slurm-22.05.8", "munge"}),
)  # fmt: skip
NEW = Candidate(
    id="ami-new", name="debian-12-slurm-v2", created=200.0, os="Debian", version="12.10",
    software=frozenset({"slurm-24.11.5", "munge", "cuda-12.4"}),
)  # fmt: skip
OTHER = Candidate(id="ami-el9", name="el9", created=300.0, os="rocky", version="9")
ALL = (OLD, NEW, OTHER)


@pytest.mark.parametrize(
    ("choice", "image"),
    [
        (ImageChoice(name="debian-12-slurm-*"), "ami-new"),
        (ImageChoice(name="debian-12-slurm-v[1]"), "ami-old"),
        (ImageChoice(name="Debian-*"), None),
        (ImageChoice(os="debian"), "ami-new"),
        (ImageChoice(os="debian", version="12"), "ami-new"),
        (ImageChoice(version="12.1"), None),
        (ImageChoice(version="12.5"), "ami-old"),
        (ImageChoice(software=("slurm-22.05", "munge")), "ami-old"),
        (ImageChoice(software=("slurm-2",)), None),
        (ImageChoice(software=("cuda-12",)), "ami-new"),
        (ImageChoice(os="rocky", software=("cuda-12",)), None),
    ],
)
def test_the_newest_that_fits(choice: ImageChoice, image: str | None) -> None:
    found = newest(choice, ALL)
    assert (found.id if found else None) == image


def test_what_was_looked_for_and_the_nearest_are_told() -> None:
    choice = ImageChoice(os="debian", version="13", software=("slurm-24.11", "rocm"))
    assert none_fits(choice, ALL) == (
        "no image has os debian, version 13, software slurm-24.11, software rocm; looked at 3, "
        "the nearest is debian-12-slurm-v2 (ami-new), without version 13, software rocm"
    )
    assert none_fits(choice, ()).endswith("software rocm; looked at 0")


def test_words_of_a_tag() -> None:
    assert software_of(" slurm-24.11, cuda-12.4  munge") == {"slurm-24.11", "cuda-12.4", "munge"}
    assert software_of("") == frozenset()


@given(st.permutations(ALL), st.sampled_from(["debian", "rocky", "none"]))
def test_the_order_does_not_matter_and_what_is_chosen_lacks_nothing(
    images: list[Candidate], os: str
) -> None:
    choice = ImageChoice(os=os)
    found = newest(choice, images)
    assert found == newest(choice, ALL)
    assert found is None or lacks(choice, found) == ()
