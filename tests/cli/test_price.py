"""``price``: what is wrong with the question is told, not forecast."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.cli.main import main

YAML = """
cluster: {{name: alps}}
state_dir: {root}/state
slurm: {{conf: {root}/slurm.conf, bin_dir: {root}/bin}}
clouds:
  - {{name: onp, provider: local, location: on-premises}}
pools:
  - {{name: rack, cloud: onp, nodes: "op[1-2]", slurmd_port: 17001, cpus: 2, memory: 4G}}
"""
SBATCH = """#!/bin/sh
cat >&2 <<END
sbatch: defined options
sbatch: -------------------- --------------------
sbatch: partition           : batch,nosuch
sbatch: -------------------- --------------------
sbatch: end of defined options
sbatch: error: invalid partition specified: batch,nosuch
allocation failure: Invalid partition name specified
END
exit 1
"""


def test_a_partition_that_slurm_lacks_is_named_and_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text(SBATCH)
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    conf = "ClusterName=alps\nNodeName=st1\nPartitionName=batch Nodes=st1\nPartitionName=onp\n"
    (tmp_path / "slurm.conf").write_text(conf)
    file = tmp_path / "slurm-elastic.yaml"
    file.write_text(YAML.format(root=tmp_path))
    (tmp_path / "job.sh").write_text("#!/bin/sh\n")
    job = str(tmp_path / "job.sh")
    assert main(["--config", str(file), "price", job, "-p", "batch,nosuch"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "slurm-elastic: Slurm has no partition nosuch; slurm.conf has batch, onp\n"
