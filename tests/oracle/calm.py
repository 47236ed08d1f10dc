"""An hour after the last fault: nothing is left of it in the records, in Slurm and on the disk."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_elastic.cli.operate.status import gather
from slurm_elastic.state.state_files import declared
from slurm_elastic.watch.view import status_view
from slurm_elastic.watch.view.rows import AttentionLevel
from tests.chaos.drawn_site import is_sold

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

HOUR = 3600.0 + 180.0
"""After an hour the services forget machines that no record knows, and they look for them seldom."""
FILES, BYTES = 64, 8 << 20
"""The most that a site of six nodes may keep in its state directory after a day's work."""
HELD = "slurm-elastic:hold:"
LEFT = {"holds": "hold", "launches": "open launch", "cool_downs": "cool-down", "kept": "kept thing"}
"""Rows of ``status`` that a fault leaves for a while only."""


class ErrorLines(logging.Handler):
    """Counts the lines at ERROR since ``clear``."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.counts: Counter[str] = Counter()
        self._log = logging.getLogger("slurm_elastic")
        self._log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.counts[f"{record.name}: {record.getMessage()}"] += 1

    def close(self) -> None:
        self._log.removeHandler(self)
        super().close()


def wrongs(stage: Stage, now: float, errors: Counter[str]) -> Iterator[str]:
    """What is left at that time, although nothing is wrong and no job is there."""
    for name, node in stage.slurm.nodes().items():
        is_held = node.reason.startswith(HELD)  # by a growth policy, until a job needs it
        out = node.states & ({"DOWN"} if is_held else {"DRAIN", "DOWN"})
        if "POWERED_DOWN" not in node.states or out:
            yield f"node {name} is {sorted(node.states)}: {node.reason}"
    # The nodes of a pool for which its cloud has no type stay held, with this reason.
    unsold = {pool.name for pool in stage.config.pools if not is_sold(stage.config, pool)}
    view = status_view(stage.config, gather(stage.config, stage.slurm, now))
    yield from _rows(view, unsold, _doubts_for_a_person(stage))
    for job, comment in stage.slurm.admin_comments().items():
        if "[slurm-elastic" in comment:
            yield f"job {job} has {comment}"
    yield from _files(stage.config.state)
    for line, count in errors.items():
        if count > 1:
            yield f"{count} lines at ERROR: {line}"


def _doubts_for_a_person(stage: Stage) -> Iterator[str]:
    """The clouds whose list was doubted for machines that have all ended since. No list can show
    one of them again, so only a person may end the doubt (docs/faults.md).
    """
    assert stage.ledger is not None
    select = "select scope, about from exclusions where kind = 'doubt'"
    for cloud, about in sqlite3.Connection.execute(stage.ledger.store._db, select):
        if stage.accounts[cloud].ended.keys() >= set(json.loads(about)):
            yield cloud


def _rows(view: Any, unsold: Container[str], doubted: Iterable[str]) -> Iterator[str]:
    for name, words in LEFT.items():
        for row in getattr(view, name):
            is_right = getattr(row, "kind", "") == "policy" or getattr(row, "pool", "") in unsold
            if not is_right:
                yield f"a {words} is left: {row}"
    yield from (f"a machine is paid for nobody: {row}" for row in view.instances)
    yield from (f"a pool is paused: {breaker}" for breaker in view.breakers if breaker.left)
    yield from (f"a problem stands: {problem}" for problem in view.daemon.problems)
    if view.daemon.pending_requests:
        yield f"{view.daemon.pending_requests} requests of Slurm wait"
    yield from _warnings(view, doubted)
    if view.checkpoints is not None:
        moves = [move for move in view.checkpoints.moves if not move.over]
        for row in (*moves, *view.checkpoints.threats):
            yield f"a move or a threat is left: {row}"


def _warnings(view: Any, doubted: Iterable[str]) -> Iterator[str]:
    """Warnings for nothing. A pool whose machines failed is proven only by one that serves long."""
    known = [f"Pool {breaker.pool}" for breaker in view.breakers]
    known += [f"Cloud {cloud} answers with an error" for cloud in doubted]
    for notice in view.attention:
        is_known = any(notice.text.startswith(text) for text in known)
        if notice.level is not AttentionLevel.NOTE and not is_known:
            yield f"status warns when all is well: {notice.whole}"


def _files(state: Path) -> Iterator[str]:
    """All files are known ones, few and small."""
    files = [path for path in state.rglob("*") if path.is_file()]
    for path in files:
        name = path.relative_to(state).parts[0]
        if declared(name) is None:
            yield f"file {path.name} belongs to nothing"
        if path.parent.name in ("requests", "notices") or path.suffix in (".new", ".tmp", ".part"):
            yield f"draft or request {path.relative_to(state)} is left"
    size = sum(path.stat().st_size for path in files)
    if len(files) > FILES or size > BYTES:
        yield f"{len(files)} files of {size} bytes are in the state directory"
