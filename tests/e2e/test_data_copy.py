"""``data: copy`` on real Slurm: machines that share no directory with the head."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.apart import Apart, apart, why_not
from tests.e2e.world import ledger

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.release,
    pytest.mark.skipif(bool(why_not()), reason=str(why_not())),
]
SITE = {
    "static_nodes": 0,
    "drop": ("aws",),
    "elastic": {
        "clouds": [{"name": "onprem", "data": "copy"}],
        "pools": [{"name": "op", "nodes": "op[1-4]"}],
    },
}


@pytest.fixture(scope="module")
def made(sandbox: Callable[..., Sandbox]) -> Iterator[tuple[Sandbox, Apart]]:
    with apart(sandbox, SITE) as both:
        yield both


@pytest.fixture(scope="module")
def site(made: tuple[Sandbox, Apart]) -> Sandbox:
    return made[0]


def place_for(site: Sandbox, name: str) -> Path:
    """A directory of nobody's on the head."""
    place = site.work / name
    place.mkdir()
    shutil.chown(place, "nobody", "nogroup")
    return place


def fill(place: Path, **files: str) -> None:
    for name, text in files.items():
        (place / name).write_text(text)
        shutil.chown(place / name, "nobody", "nogroup")


def submit(site: Sandbox, place: Path, script: str, *options: str) -> int:
    return site.submit(script, "--partition=onprem", f"--chdir={place}", *options)


def states(site: Sandbox, job: int) -> list[str]:
    book = ledger(site)
    try:
        return [str(copy.state) for copy in book.copies.of(job)]
    finally:
        book.close()


def test_a_job_finds_its_files_and_leaves_its_results(site: Sandbox) -> None:
    place = place_for(site, "first")
    fill(place, data="42\n", kept="before\n")
    (place / "deep").mkdir()
    shutil.chown(place / "deep", "nobody", "nogroup")
    fill(place / "deep", more="1 2 3\n")
    os.symlink("data", place / "link")
    os.mkfifo(place / "pipe")
    job = submit(
        site, place,
        "[ -e pipe ] && echo shared; cat link deep/more; echo changed >> kept; mkdir new; echo made > new/result; echo sad >&2",
    )  # fmt: skip
    site.wait_job(job)
    site.wait_for(lambda: states(site, job) == ["back"], 60, "the files are back")
    assert (place / f"slurm-{job}.out").read_text() == "42\n1 2 3\nsad\n"
    assert (place / "kept").read_text() == "before\nchanged\n"
    assert (place / "new" / "result").read_text() == "made\n"
    assert (place / "new" / "result").owner() == "nobody"
    assert sorted(os.listdir(place)) == sorted(
        ["data", "kept", "deep", "link", "new", "pipe", f"slurm-{job}.out"]
    )
