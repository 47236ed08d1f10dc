"""``conf check`` names a TreeWidth by which slurmds before 23.11 forward messages to machines."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.slurm.conf import plan
from tests.slurm import site_cases

NODES = "NodeName=m[1-100] CPUs=1\n"


def told(root: Path, text: str, version: tuple[int, int] = (22, 5)) -> list[str]:
    conf = site_cases.copy("small", root)
    conf.write_text(f"{conf.read_text()}\n{text}")
    made = plan.make(site_cases.config("small", conf), version=version)
    return [notice for notice in made.notices if "TreeWidth" in notice]


@pytest.mark.parametrize("version", [(22, 5), (23, 2)])
def test_more_nodes_than_the_default_are_named_with_the_line_to_write(
    tmp_path: Path, version: tuple[int, int]
) -> None:
    (notice,) = told(tmp_path, NODES, version)
    assert notice == (
        f"{tmp_path}/etc/slurm.conf: TreeWidth is 50, and there are 104 own and 12 cloud nodes: "
        f"with more than 50 nodes up, slurmds of {version[0]}.{version[1]:02} forward messages to "
        "cloud machines, whose addresses they do not know; write TreeWidth=65533"
    )


def test_the_sites_own_width_is_named_with_its_line(tmp_path: Path) -> None:
    (notice,) = told(tmp_path, f"{NODES}TreeWidth=115\n")
    assert notice.startswith(f"{tmp_path}/etc/slurm.conf:17: TreeWidth is 115, and there are 104")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("", (22, 5)),
        (NODES, (23, 11)),
        (f"{NODES}TreeWidth=116\n", (22, 5)),
        (f"{NODES}SlurmctldParameters=cloud_dns\n", (22, 5)),
    ],
)
def test_nothing_is_said_if_machines_are_reached(
    tmp_path: Path, text: str, version: tuple[int, int]
) -> None:
    assert told(tmp_path, text, version) == []


def test_nothing_is_said_of_nodes_that_run_on_this_host(tmp_path: Path) -> None:
    conf = site_cases.copy("small", tmp_path)
    conf.write_text(f"{conf.read_text()}\n{NODES}")
    config = site_cases.config("small", conf)
    local = replace(config, pools=config.pools[-1:], clouds=config.clouds[-1:])
    assert not [n for n in plan.make(local, version=(22, 5)).notices if "TreeWidth" in n]
