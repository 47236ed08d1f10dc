"""Each effect on a cloud, on Slurm or on the journal has a place before it and one after it at which
runs kill the service: an effect that is added later fails here until it has both.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_elastic.model import protocols
from tests.chaos import fakes, lie_weather

ANSWERED_WITHOUT_SLURMCTLD = {"slurmd_timeout"}
"""From slurm.conf."""
CLOUD_READS = {
    "offers", "instances", "notices", "check", "startable", "refusals", "recipe",
    "console", "credentials_end", "examine",
}  # fmt: skip
CLOUDS = (
    protocols.Provider, protocols.Tidying, protocols.Reporting, protocols.Limited,
    protocols.Chooser, protocols.Stops, protocols.Console, protocols.Expiring,
    protocols.Examinable,
)  # fmt: skip
REMOVES_LEFTOVERS = {"tidy"}
"""The fake cloud leaves nothing behind, so it has no such call."""


def methods(protocol: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(protocol, inspect.isfunction) if name[0] != "_"}


def test_each_command_of_slurm_is_a_place_of_a_kill_or_a_reading_that_may_fail() -> None:
    known = {*fakes.COMMANDS, *fakes.ONLY_LIES}
    assert methods(protocols.Slurm) == known | ANSWERED_WITHOUT_SLURMCTLD
    assert known >= fakes.CHANGES


def test_each_call_of_a_cloud_is_an_effect_or_a_reading() -> None:
    known = fakes.CLOUD_CHANGES | CLOUD_READS | REMOVES_LEFTOVERS
    assert set().union(*map(methods, CLOUDS)) == known


@pytest.mark.parametrize("effect", sorted(fakes.CLOUD_CHANGES))
def test_a_call_of_a_cloud_has_a_place_before_and_one_after(effect: str) -> None:
    places = _places(getattr(fakes.Cloud, effect), effect)
    assert places == ["before", "after"]


def _places(method: Any, effect: str) -> list[str]:
    """The places in the order of the lines, as ``_io`` or ``_told`` names them."""
    calls = [
        node
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(method))))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    named = [(c.func.attr, c.args[0].value) for c in calls if _is_named(c)]  # type: ignore[attr-defined]
    if ("_told", effect) in named:
        return ["before", "after"]  # around the call
    words = {effect: "before", f"{effect} answered": "after"}
    return [words[what] for function, what in named if function == "_io" and what in words]


def _is_named(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Constant)


@pytest.mark.parametrize("command", sorted(fakes.CHANGES))
def test_a_command_of_slurm_has_a_place_before_and_one_after(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool | str] = []
    real = fakes.Controller if command == "update_nodes" else fakes.TimedSlurm
    monkeypatch.setattr(real, command, lambda *_: seen.append("done"))
    asked = fakes._asked(command)
    lies = SimpleNamespace(commanded=lambda name, answered: seen.append(answered))
    quiet = lambda *_: None  # noqa: E731
    current = SimpleNamespace(owner="elasticd", read_nodes={})
    stage = SimpleNamespace(
        lies=lies, note=quiet, tells_slurm=quiet, linger=quiet, rng=None,
        sched=SimpleNamespace(current=current, now=0.0),
    )  # fmt: skip
    asked(SimpleNamespace(stage=stage, fails=quiet, lost_answers=0))
    assert seen == [False, "done", True]


def test_a_kill_may_come_at_each_effect() -> None:
    of_services = {effect for effects in lie_weather.OFTEN.values() for effect in effects}
    assert of_services <= set(lie_weather.EFFECTS)
    assert set(lie_weather.EFFECTS) == fakes.CLOUD_CHANGES | fakes.CHANGES | {lie_weather.RECORD}


def test_no_part_of_the_product_gets_around_the_fakes() -> None:
    """Else its effect would have no such place."""
    package = Path(protocols.__file__).parents[1]
    for folder in ("controller", "features", "ckptman"):
        for path in sorted((package / folder).rglob("*.py")):
            assert "scontrol" not in _called_programs(path), path


def _called_programs(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    lists = [node for node in ast.walk(tree) if isinstance(node, ast.List | ast.Tuple)]
    first = [node.elts[0] for node in lists if node.elts]
    return {node.value for node in first if isinstance(node, ast.Constant)}
