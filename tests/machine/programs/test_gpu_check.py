"""etc/slurm-elastic-gpu-check as the gate runs it, with an nvidia-smi that is a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

PROGRAM = Path(__file__).parents[3] / "etc" / "slurm-elastic-gpu-check"
A100 = "NVIDIA A100-SXM4-40GB"
CUT = "  MIG 3g.20gb     Device  0: (UUID: MIG-5)\n  MIG 3g.20gb     Device  1: (UUID: MIG-6)\n"


def gpus(count: int, model: str = A100, after: str = "") -> str:
    return "".join(f"GPU {n}: {model} (UUID: GPU-{n})\n{after}" for n in range(count))


def run(directory: Path, listed: str, *arguments: str, code: int = 0) -> tuple[int, str]:
    """Its exit status, and all that it says."""
    program = directory / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\n[ \"$*\" = -L ] || exit 9\ncat <<'END'\n{listed}END\nexit {code}\n"
    )
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-I", PROGRAM, "--nvidia-smi", program, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=patience(60), check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize(
    ("gres", "listed"),
    [
        ("gpu:4", gpus(4)),
        ("gpu:a100:4", gpus(4)),
        ("gpu:t4:1,shard:8", gpus(1, "Tesla T4")),
        ("gpu:tesla_t4:1", gpus(1, "Tesla T4")),
        ("gpu:h100-80gb:8", gpus(8, "NVIDIA H100 80GB HBM3")),
        ("gpu:a100_3g.20gb:2", gpus(1, after=CUT)),
        ("gpu:a100_3g.20gb:4,gpu:t4:1", gpus(2, after=CUT) + gpus(1, "Tesla T4")),
        ("gpu:a100_1g.10gb:1", gpus(1, after="  MIG 1g.10gb+me  Device  0: (UUID: MIG-5)\n")),
        ("fpga:2", ""),
        ("", ""),
    ],
)
def test_a_machine_that_has_what_its_node_shall_have_passes_in_silence(
    gres: str, listed: str, tmp_path: Path
) -> None:
    assert run(tmp_path, listed, "--gres", gres) == (0, "")


@pytest.mark.parametrize(
    ("gres", "listed", "words"),
    [
        ("gpu:a100:4", gpus(3), f"3 x {A100}; the node shall have 4 x gpu:a100"),
        ("gpu:2", "", "no GPU; the node shall have 2 x gpu"),
        ("gpu:l4:1", gpus(1, "NVIDIA L40S"), "1 x NVIDIA L40S; the node shall have 1 x gpu:l4"),
        ("gpu:a100:1", gpus(1, after=CUT), "2 x MIG 3g.20gb; the node shall have 1 x gpu:a100"),
        ("gpu:a100_3g.20gb:2", gpus(1), f"1 x {A100}; the node shall have 2 x gpu:a100_3g.20gb"),
        ("gpu:1", gpus(2), f"2 x {A100}; the node shall have 1 x gpu"),
    ],
)  # fmt: skip
def test_what_is_there_and_what_shall_be_there_are_one_line(
    gres: str, listed: str, words: str, tmp_path: Path
) -> None:
    assert run(tmp_path, listed, "--gres", gres) == (1, f"nvidia-smi -L has {words}")


def test_a_type_that_is_no_part_of_the_model_counts_only(tmp_path: Path) -> None:
    assert run(tmp_path, gpus(2), "--gres", "gpu:big:2", "--count-only") == (0, "")
    assert run(tmp_path, gpus(1), "--gres", "gpu:big:2", "--count-only")[0] == 1


def test_a_driver_that_does_not_answer_is_the_cause(tmp_path: Path) -> None:
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
    code, words = run(tmp_path, said, "--gres", "gpu:t4:1", code=9)
    assert code == 1
    assert words == f"exit 9 of nvidia-smi -L: {said.strip()}; the node shall have 1 x gpu:t4"


def test_without_nvidia_smi_that_is_the_cause(tmp_path: Path) -> None:
    code, words = run(tmp_path, "", "--gres", "gpu:t4:1", "--nvidia-smi", str(tmp_path / "none"))
    assert code == 1
    assert "No such file or directory" in words


@pytest.mark.parametrize("gres", ["gpu", "gpu:a:b:c", "gpu:four"])
def test_what_is_no_gres_is_refused(gres: str, tmp_path: Path) -> None:
    code, words = run(tmp_path, "", "--gres", gres)
    assert (code, words) == (
        2, f"slurm-elastic-gpu-check: --gres: found {gres!r}, expected such as gpu:a100:4",
    )  # fmt: skip


def test_a_machine_that_was_told_nothing_is_refused(tmp_path: Path) -> None:
    code, words = run(tmp_path, gpus(1))
    assert code == 2
    assert words.startswith("slurm-elastic-gpu-check: /run/slurm-elastic/launch: ")
