"""A daemon of the sandbox counts as started when this process of it works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.machine.local.local_processes import Process
from slurm_elastic.sandbox.daemons import Daemons
from slurm_elastic.sandbox.layout import Layout
from slurm_elastic.state.heartbeat import CKPTMAN_MARK, Mark, leave_mark


class Started:
    """Processes of which each start gives the next number. ``lives``: whether it stays."""

    def __init__(self, state: Path, *, lives: bool) -> None:
        self._state, self._lives = state, lives

    def start(self, *_: object, **__: object) -> Process:
        if self._lives:
            leave_mark(self._state, Mark(at=1.0, pid=2), CKPTMAN_MARK)
        return Process(pid=2, start=1)

    def alive(self, _: str) -> bool:
        return self._lives

    def log(self, name: str) -> Path:
        return Path(f"{name}.out")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """What an earlier process of slurm-elastic-ckptman has left."""
    made = tmp_path / "state"
    (made / "notices").mkdir(parents=True)
    leave_mark(made, Mark(at=1.0, pid=1), CKPTMAN_MARK)
    return made


def start(state: Path, *, lives: bool) -> None:
    processes: Any = Started(state, lives=lives)
    Daemons(Layout(dir=state.parent), processes).ckptman({})


def test_a_service_that_ends_at_once_has_not_started_whatever_is_left_of_the_last(
    state: Path,
) -> None:
    with pytest.raises(SandboxError, match=r"ended at once; see slurm-elastic-ckptman\.out"):
        start(state, lives=False)


def test_a_service_has_started_with_its_first_sign_of_life(state: Path) -> None:
    start(state, lives=True)
