"""Whoever changes the files of a memory has its turn: the lock of its journal."""

from __future__ import annotations

import fcntl
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.state.store import endurance
from slurm_elastic.state.store.journal import Journal
from slurm_elastic.state.store.merging import MemoryMerge
from slurm_elastic.state.store.shared_journal import journal_of

_WITHOUT_REST = 5
"""The arguments of ``Journal.begin`` but for the last, which takes the turn when all else is done."""


def require_turn(journal: Journal) -> None:
    """AssertionError where anybody could have the lock now."""
    with journal.turn.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
    raise AssertionError(f"{journal.turn} is nobody's, in {sys._getframe(2).f_code.co_name}")


@pytest.fixture(autouse=True)
def _by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    def asks(real: Callable[..., Any], journal_from: Callable[..., Journal]) -> Callable[..., Any]:
        def asked(*arguments: Any, **named: Any) -> Any:
            is_ours = sys._getframe(1).f_globals["__name__"].startswith("slurm_elastic.")
            takes_it_itself = real is begin and len(arguments) > _WITHOUT_REST
            if is_ours and not takes_it_itself:
                require_turn(journal_from(*arguments))
            return real(*arguments, **named)

        return asked

    def of_view(_: MemoryMerge, db: sqlite3.Connection, *rest: object) -> Journal:
        return journal_of(Path(db.execute("pragma database_list").fetchone()["file"]))

    begin = Journal.begin
    for name in ("append", "begin", "cut", "note"):
        real = getattr(Journal, name)
        monkeypatch.setattr(Journal, name, asks(real, lambda journal, *_: journal))
    aside = asks(endurance.set_aside, lambda path, _: journal_of(path))
    monkeypatch.setattr(endurance, "set_aside", aside)
    monkeypatch.setattr(MemoryMerge, "__init__", asks(MemoryMerge.__init__, of_view))
