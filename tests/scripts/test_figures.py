"""The figures that the documentation shows are those that its commands print."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
from needs import unless
from pages import shown
from PIL import Image, ImageChops

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", ROOT / "scripts" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


figures = module()
PAGES = [page for page in figures.pages() if "<!-- made by: " in page.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_what_its_commands_print(page: Path) -> None:
    try:
        changed = list(figures.made_anew(page))
    except figures.NotHereError as error:
        pytest.skip(str(error))
    assert not changed, f"run ./scripts/figures: {changed[0][0]} prints now\n{changed[0][1]}"


def test_the_readmes_simulation_is_the_one_whose_output_is_shown() -> None:
    told = re.findall(r"<!-- made by: (.*) -->", (ROOT / "docs" / "simulate.md").read_text())
    (line,) = shown("README.md", "./slurm-elastic").lines
    assert " ".join(line.split()) == f"./{figures.readme_command()}"
    words = [word for word in shlex.split(figures.readme_command()) if "html" not in word]
    assert words in [shlex.split(command) for command in told]


def test_the_readmes_simulation_costs_something() -> None:
    """A result in which no machine was bought compares nothing."""
    try:
        printed = figures.printed(figures.readme_command())
    except figures.NotHereError as error:
        pytest.skip(str(error))
    first, *_ = printed.split("\n", 1)
    assert "no machine" not in first
    assert "$0.00  " not in next(line for line in printed.splitlines() if " cost " in line)


@unless("chromium")
def test_the_picture_is_that_of_the_readmes_simulation(tmp_path: Path) -> None:
    """But for what another release of the browser or its fonts draws a little differently."""
    try:
        figures.picture(tmp_path / "now.png")
    except figures.NotHereError as error:
        pytest.skip(str(error))
    kept, now = (Image.open(one).convert("L") for one in (figures.PICTURE, tmp_path / "now.png"))
    assert kept.size == now.size
    shades = ImageChops.difference(kept, now).histogram()
    assert sum(shades[64:]) < 0.01 * sum(shades), "run ./scripts/figures and look at it"
