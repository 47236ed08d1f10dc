"""What each key of ``status --watch`` changes."""

from __future__ import annotations

from msgspec.structs import replace

from slurm_elastic.cli.operate.watch_keys import WatchPage, WatchRow, WatchState, after_key, keys_of

ROWS = [WatchRow(f"i-{n}", f"pub{n}") for n in range(1, 31)]


def pressed(*keys: str, state: WatchState | None = None, lines: int = 0) -> WatchState:
    state = state or WatchState()
    for key in keys:
        state = after_key(state, key, ROWS, lines, 10)
    return state


def test_s_goes_through_all_orders_and_back() -> None:
    orders = [pressed(*"s" * n).sort for n in range(6)]
    assert orders == [None, "node", "cost", "price", "age", None]


def test_the_selection_moves_and_stays_on_its_machine() -> None:
    assert pressed("down").selected == "i-1"
    assert pressed("up").selected == "i-1"
    assert pressed("j", "j", "k").selected == "i-1"
    assert pressed("end", "down").selected == "i-30"
    assert pressed("page-down", "page-down").selected == "i-20"
    assert pressed("G", "g").selected == "i-1"
    sorted_otherwise = ROWS[::-1]
    assert after_key(pressed("down"), "down", sorted_otherwise).selected == "i-1", "now the last"
    assert after_key(pressed("down"), "down", ROWS[5:]).selected == "i-6", "it is gone"
    assert after_key(WatchState(), "down", []).selected == ""


def test_enter_explains_the_selected_machine_and_q_comes_back() -> None:
    explained = pressed("down", "down", "enter")
    assert (explained.page, explained.subject) == (WatchPage.EXPLANATION, "pub2")
    back = pressed("q", state=explained)
    assert (back.page, back.selected, back.is_done) == (WatchPage.STATUS, "i-2", False)
    assert pressed("enter").page is WatchPage.STATUS, "nothing is selected"


def test_a_text_scrolls_within_its_lines() -> None:
    text = pressed("down", "e")
    assert pressed("end", state=text, lines=25).scroll == 15
    assert pressed("page-down", " ", "down", state=text, lines=25).scroll == 15
    assert pressed("down", "up", "up", state=text, lines=25).scroll == 0
    assert pressed("end", state=text, lines=5).scroll == 0


def test_a_filter_is_typed_kept_and_removed() -> None:
    typing = pressed("/", *"spoq", "backspace", "t")
    assert (typing.pattern, typing.is_typing, typing.is_done) == ("spot", True, False)
    kept = pressed("enter", state=typing)
    assert (kept.pattern, kept.is_typing) == ("spot", False)
    assert pressed("escape", state=typing).pattern == ""
    assert pressed("escape", state=kept).pattern == ""
    assert pressed("/", *"x" * 100).pattern == "x" * 60
    assert pressed("/", "up", "\x07").pattern == "", "neither keys nor control characters"


def test_help_quit_and_read_now() -> None:
    assert pressed("h").page is pressed("?").page is WatchPage.HELP
    assert pressed("h", "escape").page is WatchPage.STATUS
    assert pressed("q").is_done
    assert pressed("r").reads_now
    assert not pressed("r", "down").reads_now
    assert pressed("x", "\x07", "f5") == WatchState()


def test_sequences_of_a_terminal_are_keys_also_in_pieces() -> None:
    assert keys_of("\x1b[A\x1b[Bq\r\x7f\x1bOA\x1b[5~", is_complete=False) == (
        ["up", "down", "q", "enter", "backspace", "up", "page-up"], "",
    )  # fmt: skip
    keys, rest = keys_of("j\x1b[", is_complete=False)
    assert (keys, rest) == (["j"], "\x1b[")
    assert keys_of(rest + "6~", is_complete=False) == (["page-down"], "")
    assert keys_of("\x1b", is_complete=False) == ([], "\x1b")
    assert keys_of("\x1b", is_complete=True) == (["escape"], "")
    assert keys_of("\x1bx", is_complete=False) == (["escape", "x"], "")
    assert keys_of("\x1b[1;5D\x1b[<0;3;4Mä", is_complete=False) == (["ä"], ""), "unknown ones"
    assert keys_of("\x1b[", is_complete=True)[0][0] == "escape"


def test_every_key_leaves_a_state_that_every_key_accepts() -> None:
    keys = ["up", "end", "enter", "escape", "/", "s", "h", "q", "r", "backspace", "page-down", "ö"]
    states = {WatchState(), pressed("down")}
    for _ in range(3):
        states |= {after_key(state, key, ROWS, 40, 10) for state in states for key in keys}
    assert all(0 <= state.scroll <= 30 for state in states)
    assert all(replace(state) == state for state in states)
