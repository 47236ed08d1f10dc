"""The Grafana dashboards fit Grafana's own schema, by its Foundation SDK for Python.

No Grafana runs here: Debian has none. That the panels' queries have data is proved by a real
Prometheus (``door/test_metrics.py``).
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sdk = pytest.importorskip("grafana_foundation_sdk", reason="of the extra dev")

BOARDS = sorted((Path(__file__).parents[2] / "etc" / "grafana").glob("*.json"))
EACH = pytest.mark.parametrize("path", BOARDS, ids=lambda p: p.stem)
WIDTH = 24


def understood(board: dict[str, Any]) -> Any:
    """The dashboard as Grafana's types have it, as plain values."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(board)))


def lost(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """What of ours the types do not have, or have otherwise."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            yield from lost(value, theirs.get(key), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for n, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from lost(one, other, f"{path}[{n}]")
    elif ours != theirs:
        yield path


def test_there_are_boards() -> None:
    assert len(BOARDS) == 3


@EACH
def test_every_value_is_one_that_grafana_knows(path: Path) -> None:
    board = json.loads(path.read_text())
    assert list(lost(board, understood(board))) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [(("strange",), 1), (("panels", 0, "gridpos"), {}), (("templating", "list", 1, "hidden"), 1),
     (("panels", 0, "targets", 0, "query"), "up")],
)  # fmt: skip
def test_a_key_that_grafana_does_not_know_is_found(
    place: tuple[str | int, ...], value: object
) -> None:
    board = json.loads(BOARDS[0].read_text())
    strange = copy.deepcopy(board)
    here: Any = strange
    for step in place[:-1]:
        here = here[step]
    here[place[-1]] = value
    assert list(lost(strange, understood(strange))) != []


@EACH
def test_panels_have_ids_and_places_of_their_own(path: Path) -> None:
    panels = json.loads(path.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations((panel["gridPos"] for panel in panels), 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart or below, (one, other)
    assert all(p["gridPos"]["x"] + p["gridPos"]["w"] <= WIDTH for p in panels)


@EACH
def test_all_ask_the_chosen_source_for_the_chosen_heads(path: Path) -> None:
    board = json.loads(path.read_text())
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names[:2] == ["datasource", "instance"]
    for panel in board["panels"]:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert 'instance=~"$instance"' in target["expr"], panel["title"]


@EACH
def test_every_metric_of_a_query_is_on_the_page_of_metrics(path: Path) -> None:
    """A test compares that page with what is exported."""
    page = (BOARDS[0].parents[2] / "docs" / "metrics.md").read_text()
    for panel in json.loads(path.read_text())["panels"]:
        for target in panel["targets"]:
            names = set(re.findall(r"\bslurm_elastic_\w+", target["expr"]))
            assert names
            missing = [
                name
                for name in names
                if name.removeprefix("slurm_elastic_") not in page and name not in page
                and re.sub(r"_(bucket|sum|count)$", "", name).removeprefix("slurm_elastic_") not in page
            ]  # fmt: skip
            assert missing == [], panel["title"]
