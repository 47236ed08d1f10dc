"""Texts of other programs as one line of bounded length."""

from __future__ import annotations


def one_line(text: str, max_length: int) -> str:
    """Return the text as one line of at most ``max_length`` characters. The middle of a longer text
    is left out, because a text begins with the event and may end with the remedy.
    """
    line = " ".join(text.split())
    if len(line) <= max_length:
        return line
    # The end of a text often has the remedy, so a third of the length is kept for it.
    end = max_length // 3
    return f"{line[: max_length - end - 3]}...{line[-end:]}"
