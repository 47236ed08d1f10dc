"""The modules that may spend money, end machines or requeue jobs are few, and listed here.

``slurm_elastic/controller`` is the core. What else may make such a call stands beside it in
``CALLERS``, so that a sysadmin who reads these files has read every line that can do it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import slurm_elastic

PACKAGE = Path(slurm_elastic.__file__).parent
ROOT = PACKAGE.parent
CALLERS = {
    "launch": {"controller/launching/launch.py"},
    "terminate": {"controller/ending.py", "watch/watchdog.py"},
    "start": {"features/power/starting.py"},
    "stop": {"features/power/stopping.py"},
    # One owner computes the values of a waiting job from all wishes.
    "change_pending": {"controller/changed_jobs.py"},
    "hold": {"controller/changed_jobs.py"},
    "requeue": {
        "ckptman/moves/requeueing.py",
        "ckptman/unfit_nodes.py",
        "features/orders/departures.py",
    },
}
"""By method of ``model.protocols`` (Provider, Stops, Slurm), the modules that call it."""
ELSEWHERE = ("providers", "sandbox", "simulate", "testing", "machine", "slurm")
"""Folders that implement these methods, imitate them for tests, or have others of these names."""
PROVIDERS = ("provider", "providers", "_stops", "slurm")
"""Names by which the product reaches a cloud or Slurm."""


def calls(path: Path) -> Iterator[str]:
    """The methods of a provider or of Slurm that this module calls."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        receiver = node.func.value
        names = {part.id for part in ast.walk(receiver) if isinstance(part, ast.Name)}
        names |= {part.attr for part in ast.walk(receiver) if isinstance(part, ast.Attribute)}
        if node.func.attr in CALLERS and names.intersection(PROVIDERS):
            yield node.func.attr


def test_only_listed_modules_buy_end_or_requeue() -> None:
    callers: dict[str, set[str]] = {method: set() for method in CALLERS}
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        if place.parts[0] not in ELSEWHERE:
            for method in calls(path):
                callers[method].add(str(place))
    assert callers == CALLERS


def changes_of_nodes(path: Path) -> Iterator[str]:
    """The functions that power nodes up or down, or requeue their jobs, that this module calls."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else ""
        name = function.id if isinstance(function, ast.Name) else name
        if name.startswith(("power_up", "power_down", "set_down", "refuse_jobs")):
            yield name


def test_the_reading_list_has_each_module_that_powers_nodes_or_gives_them_up() -> None:
    """Slurm then asks for a machine, or for its end."""
    page = (ROOT / "docs" / "core.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\d+\. `([^`]+)`", page, re.MULTILINE))
    changing = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in ELSEWHERE and any(changes_of_nodes(path))
    }
    called = {module for modules in CALLERS.values() for module in modules}
    assert (changing | called) - listed == set()


def test_a_call_is_found_however_the_provider_is_reached(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "site.providers[cloud].launch(spec)\n"
        "self._site.slurm.requeue(7)\n"
        "_stops(site, cloud).stop(ids)\n"
        "thread.start()\n"
    )
    assert list(calls(module)) == ["launch", "requeue", "stop"]
