"""What the watched screen draws, without a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import pytest

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.cli.operate import watch_screen
from slurm_elastic.cli.operate.status_screen import Screen
from slurm_elastic.cli.operate.watch_keys import WatchPage, WatchState
from slurm_elastic.cli.operate.watch_screen import WatchSources

HOSTILE = "no \x1b]0;owned\x07 answer\nat all"


class Canvas:
    """Keeps the last picture."""

    lines: Sequence[str] = ()

    def draw(self, lines: Sequence[str]) -> None:
        self.lines = lines

    def wake(self) -> None: ...


def refuse(*_: object) -> NoReturn:
    raise SlurmElasticError(HOSTILE)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[WatchState], Sequence[str]]:
    """The picture in this state if every reading fails."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "10")

    def draw(state: WatchState) -> Sequence[str]:
        canvas = Canvas()
        sources = WatchSources(status=refuse, explanation=refuse)
        watched = watch_screen._Watch(sources, "alps", 5.0, Screen(), canvas)  # type: ignore[arg-type]
        watched._state = state
        watched._read_status()
        if state.subject:
            watched._read_explanation(state.subject, 40)
        watched._take_readings()
        watched._draw()
        return canvas.lines

    return draw


def test_words_of_others_do_not_control_the_terminal(
    drawn: Callable[[WatchState], Sequence[str]],
) -> None:
    for state in (WatchState(), WatchState(page=WatchPage.EXPLANATION, subject="pub1")):
        lines = drawn(state)
        assert len(lines) == 10, "as high as the screen"
        text = " ".join(lines)
        assert "\x1b]" not in text
        assert "\x07" not in text
        assert "no \\x1b]0;owned\\x07" in text


def test_help_and_the_filter_fit_a_small_screen(
    drawn: Callable[[WatchState], Sequence[str]],
) -> None:
    assert "Keys of slurm-elastic" in drawn(WatchState(page=WatchPage.HELP))[0]
    typing = drawn(WatchState(is_typing=True, pattern="x" * 60))
    assert len(typing) == 10
    assert "Filter: " in typing[-1]
