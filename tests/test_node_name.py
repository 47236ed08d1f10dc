"""The program of the playbook's node role that tells a cloud machine its node name."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.providers.aws_user_data import compose
from slurm_elastic.slurm.hostlist import compress, expand

PROGRAM = Path(__file__).parents[1] / "ansible/roles/node/files/slurm-elastic-node-name"


def load() -> dict:
    names: dict = {"__name__": "slurm_elastic_node_name"}
    exec(compile(PROGRAM.read_text(), str(PROGRAM), "exec"), names)
    return names


ours = load()["expand"]


@pytest.mark.parametrize(
    "hostlist",
    ["pub1", "pub[1-6]", "pub[3,1-2]", "a1,b[2-3,05]", "n[008-011]x,m2", "gpu-1-[0-3]"],
)
def test_expands_as_slurm_elastic_does(hostlist):
    assert ours(hostlist) == list(expand(hostlist))


@given(st.lists(st.sampled_from([f"pub{n}" for n in range(1, 30)]), min_size=1, unique=True))
def test_expands_what_compress_made(nodes):
    assert sorted(ours(compress(nodes))) == sorted(nodes)


def launch_file(tmp_path: Path, nodes: str) -> Path:
    """What cloud-init's boot hook leaves, by running its script on another path."""
    text = compose({"cluster": "it's", "generation": "g1"}, nodes, "").decode()
    lines = text.partition("<<'LAUNCH'\n")[2].partition("LAUNCH\n")[0]
    path = tmp_path / "launch"
    path.write_text(lines)
    return path


def test_a_machine_alone_has_the_only_name(tmp_path):
    done = subprocess.run(
        [PROGRAM, launch_file(tmp_path, "pub7")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "pub7\n"


def test_one_of_many_takes_the_name_at_its_launch_index(tmp_path, capsys):
    names = load()
    names["launch_index"] = lambda: 2
    names["main"](str(launch_file(tmp_path, "pub[1-2],pub5,pub[7-8]")))
    assert capsys.readouterr().out == "pub5\n"


def test_without_nodes_it_says_so(tmp_path):
    done = subprocess.run(
        [PROGRAM, launch_file(tmp_path, "")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "names no nodes" in done.stderr
