"""The sentence for an optional part that is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slurm_elastic.base.extras import missing_module

REPOSITORY = Path(__file__).parents[2]


def test_a_missing_module_names_the_extra_that_brings_it() -> None:
    error = ModuleNotFoundError("No module named 'boto3'", name="boto3")
    assert missing_module(error, "aws") == (
        f"Python module 'boto3' is missing; do: {sys.executable} -m pip install '.[aws]'"
        " in a clone of slurm-elastic"
    )


@pytest.mark.parametrize("name", ["mimetypes", "email.message"])
def test_no_extra_brings_a_module_of_python_itself(name: str) -> None:
    said = missing_module(ModuleNotFoundError(f"No module named {name!r}", name=name), "aws")
    assert said.startswith(f"Python's own module {name!r} cannot be read by this user; ")
    assert sys.prefix in said
    assert "pip" not in said


def test_nothing_tells_people_to_install_a_package_that_no_registry_has() -> None:
    """Whoever registered that name would get into the head nodes of those who obey."""
    folders = ("slurm_elastic", "docs", "etc", "ansible", "packaging", "containers", "examples")
    files = [REPOSITORY / "README.md"]
    files += [path for folder in folders for path in (REPOSITORY / folder).rglob("*")]
    texts = {
        path: path.read_text()
        for path in files
        if path.suffix in (".py", ".md", ".yml", ".yaml", ".sh", ".txt") and path.is_file()
    }
    assert [str(path) for path, text in texts.items() if "slurm-elastic[" in text] == []
