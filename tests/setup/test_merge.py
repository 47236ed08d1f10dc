"""A second ``init`` merges new clouds into the file of the first."""

from __future__ import annotations

from slurm_elastic.config.found import Found
from slurm_elastic.model.cluster import Location
from slurm_elastic.setup.merge import without_old_steps

FILE = """\
clouds:
  - name: onprem
    provider: fake
  # project hpc in /etc/clouds.yaml: HTTPSConnectionPool(...) refused
  # project dev in /etc/clouds.yaml: make an image in this project
pools: []
"""


def test_a_cloud_that_can_be_used_now_loses_the_comment_about_its_old_error() -> None:
    cloud = Found(
        name="hpc", provider="openstack", location=Location.ON_PREMISES, usable=True,
        what="project hpc in /etc/clouds.yaml",
    )  # fmt: skip
    text = without_old_steps(FILE, [cloud])
    assert "project hpc" not in text
    assert "project dev in /etc/clouds.yaml: make an image" in text, "it still needs that step"
    assert text.count("\n") == FILE.count("\n") - 1
