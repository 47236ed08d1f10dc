"""The simulator's inner modules compiled: the very same sources, the same results to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import compiled

CHECK = """
from msgspec.structs import replace
from slurm_elastic.simulate import engine
from tests.simulate.test_same import EXPECTED, JOBS, NONE, SCENARIOS, digest
assert engine.__file__.endswith(".so"), engine.__file__
for name, scenario in SCENARIOS.items():
    found = digest(engine.simulate(JOBS, replace(scenario, cool_downs=NONE)))
    assert found == EXPECTED[name], (name, found)
"""


def test_compiled_modules_give_the_same_results(tmp_path: Path) -> None:
    missing = compiled.missing()
    if missing:
        pytest.skip(f"the modules cannot be compiled here: {missing}")
    compiled.build(tmp_path)
    compiled.run(tmp_path, ["-c", CHECK], compiled.REPO)
