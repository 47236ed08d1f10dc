"""No thread of a run waits for a real lock."""

from __future__ import annotations

import time

from slurm_elastic.controller import context
from slurm_elastic.controller.context import Site
from tests.chaos.stage import lock_names


def test_each_lock_of_a_site_is_virtual() -> None:
    names = lock_names(Site)
    assert {"hold_lock", "job_lock"} <= names
    assert names == {name for name in Site.__annotations__ if name.endswith("lock")}


def test_only_a_stage_makes_the_clock_virtual() -> None:
    assert context.time is time
