"""DMTCP's stand-in takes what DMTCP 4.2.0 takes, by its help texts, and answers as it does."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpointers.real_dmtcp import unpacked

RECORDED = Path(__file__).parents[1] / "machine" / "ckptroot" / "dmtcp42"
STAND_IN = RECORDED.with_name("dmtcp_stand_in.py")
PROGRAMS = ("dmtcp_launch", "dmtcp_restart", "dmtcp_command")
STARTS = ["--new-coordinator", "--coord-host", "127.0.0.1", "--coord-port", "24999", "--port-file",
          "/none/port", "--interval", "0", "--ckptdir", "/none/images", "--tmpdir", "/none/tmp",
          "--quiet", "--quiet"]  # fmt: skip
"""The options that the product uses, which ``test_dmtcp.py`` compares with the coordinator's."""
USED = {
    "dmtcp_launch": STARTS,
    "dmtcp_restart": [*STARTS, "--no-strict-checking"],
    "dmtcp_command": ["--coord-host", "127.0.0.1", "--coord-port", "24999"],
}
ORDERS = ("--status", "--checkpoint", "--kcheckpoint", "--quit")


@pytest.fixture(scope="module")
def real() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="se-dmtcp-", dir="/tmp"))
    yield unpacked(home)
    shutil.rmtree(home)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dmtcp")
    shutil.copytree(RECORDED, place / "dmtcp42")
    for name in PROGRAMS:
        shutil.copy(STAND_IN, place / name)
        (place / name).chmod(0o755)
    return place


def answer(place: Path, program: str, *words: str) -> tuple[int, str]:
    """Its exit code and the first line of what it says."""
    done = subprocess.run(
        [str(place / program), *words], capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "DMTCP_TMPDIR": str(place), "PROGRESS": str(place / "p")},
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).strip().partition("\n")[0]


def options(program: str) -> set[str]:
    lines = re.findall(r"^\s*(-.*)$", (RECORDED / f"{program}.txt").read_text(), re.MULTILINE)
    return {word for line in lines for word in re.findall(r"(?<![\w-])--[a-z][\w-]*", line)}


@pytest.mark.parametrize("program", [*PROGRAMS, "dmtcp_coordinator"])
def test_the_recorded_help_is_the_real_programs_own(real: Path, program: str) -> None:
    done = subprocess.run(
        [str(real / program), "--help"], capture_output=True, text=True, check=False,
        env={"DMTCP_TMPDIR": str(real.parent)},
    )  # fmt: skip
    assert done.stdout + done.stderr == (RECORDED / f"{program}.txt").read_text()


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_the_product_uses_is_in_the_help(program: str) -> None:
    used = {word for word in USED[program] if word.startswith("--")}
    assert used | set(ORDERS if program == "dmtcp_command" else ()) <= options(program)


QUESTIONS = [
    *((program, (*USED[program], "--help")) for program in PROGRAMS),
    *((program, ("--no-such-option", "x")) for program in PROGRAMS),
    ("dmtcp_command", ("--ckptdir", "/none", "--checkpoint")),
    ("dmtcp_command", ("--bcheckpoint", "--ckptdir", "/none")),
    ("dmtcp_launch", ("--no-strict-checking", "true")),
    *(("dmtcp_command", (*USED["dmtcp_command"], order)) for order in ORDERS),
    *((program, ("--version",)) for program in PROGRAMS),
]


@pytest.mark.parametrize(("program", "words"), QUESTIONS)
def test_the_stand_in_answers_as_the_real_program(
    real: Path, stand_in: Path, program: str, words: tuple[str, ...]
) -> None:
    assert answer(stand_in, program, *words) == answer(real, program, *words)


def test_an_option_that_no_release_has_is_refused(stand_in: Path) -> None:
    code, said = answer(stand_in, "dmtcp_command", "--ckptdir", "/none", "--checkpoint")
    assert (code, said[:6]) == (1, "Usage:")
