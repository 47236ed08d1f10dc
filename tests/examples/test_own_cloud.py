"""The cloud of docs/own-cloud.md, put together from the page's own blocks: each is Python that runs."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pages import shown

from slurm_elastic.config import Cluster
from slurm_elastic.config.cloud_kinds import API, CloudKind
from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.providers import base
from slurm_elastic.testing import contract


def run(text: str, **names: Any) -> dict[str, Any]:
    """What the block defines, with what stands above it on its page."""
    found = {"__name__": "mist_cloud", **names}
    exec(text, found)
    return found


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    settings = run(
        shown("docs/own-cloud.md", "class MistCloud").text,
        CloudSettings=CloudSettings, InstanceType=InstanceType,
    )  # fmt: skip
    provider = ModuleType("mist_cloud.provider")
    monkeypatch.setitem(sys.modules, "mist_cloud", ModuleType("mist_cloud"))
    monkeypatch.setitem(sys.modules, "mist_cloud.provider", provider)
    monkeypatch.setattr(
        provider, "MistProvider",
        lambda settings, cluster, **more: (settings, cluster, sorted(more)), raising=False,
    )  # fmt: skip
    text = shown("docs/own-cloud.md", "CLOUD = CloudKind").text
    return run(text, MistCloud=settings["MistCloud"], CloudKind=CloudKind)


def test_its_object_is_one_that_the_entry_point_names(made: dict[str, Any]) -> None:
    entry = tomllib.loads(shown("docs/own-cloud.md", "mist = ").text)
    points = entry["project"]["entry-points"]["slurm_elastic.providers"]
    assert points == {made["CLOUD"].settings.__struct_config__.tag: "mist_cloud:CLOUD"}
    assert made["CLOUD"].api == API


def test_it_opens_a_provider(made: dict[str, Any]) -> None:
    mist = made["MistCloud"](name="m", location="public", endpoint="https://mist", types={})
    cluster = Cluster(name="c", uuid=contract.UUID)
    opened = made["CLOUD"].open(mist, cluster, None)
    assert opened == (mist, cluster, ["joining", "ownership"])


def test_the_modules_that_it_names_are_there() -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-cloud.md").read_text()
    begin = page.index("| the create call")
    table = page[begin : page.index("A provider may keep", begin)]
    names = set(re.findall(r"`([a-z_/]+)(?:\.[a-z_]+)?`", table.replace(".py`", "`")))
    there = {path.stem for path in Path(base.__file__).parent.rglob("*.py")}
    attributes = {"paid_offer", "reserved_offers", "compose", "facts_of", "own_facts", "threads"}
    assert {name.rpartition("/")[2] for name in names - attributes} <= there


def test_its_tests_are_those_of_the_suite() -> None:
    plugins = run(shown("docs/own-cloud.md", "pytest_plugins").text)["pytest_plugins"]
    assert plugins == [contract.__name__.rpartition(".")[0]]
    found = run("import pytest\n" + shown("docs/own-cloud.md", "class TestLaunches").text)
    suites = [value for name, value in found.items() if name.startswith("Test")]
    assert len(suites) == 11
    for suite in suites:
        assert any(name.startswith("test_") for name in dir(suite)), suite
