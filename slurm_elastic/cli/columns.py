"""Tables, and the one rule for how they give way where rows are too wide for the screen.

A row is a line, and nothing in it is cut but what the table names in ``gives``: columns, in the
order in which they give way, no more of them than needed. A name alone is left out; with a number
it is shortened, in its middle, to so many characters at least. ``words`` names columns of text and
how many characters make a line there: longer text goes on below itself, between words, and nothing
gives way for it. Where all has given way in vain, the table has its other form (``otherwise``). In
one that has none, text gives way until a line is a word, then words are broken, and names are
folded last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

_GAP = 2  # characters between two columns
_LEAST = 8  # characters of a column of text that has to break words


class Rows:
    """A table with a bold title at its left; ``right``: the columns of numbers."""

    def __init__(
        self,
        title: str,
        *names: str,
        right: Collection[str] = (),
        words: Mapping[str, int] | None = None,
        gives: Sequence[str | tuple[str, int]] = (),
        otherwise: Callable[[], RenderableType] | None = None,
    ) -> None:
        self._title = title
        self._names = names
        self._right = right
        self._words = words or {}
        self._gives = gives
        self._otherwise = otherwise
        self._rows: list[Sequence[Text]] = []

    def add(self, *cells: str | Text) -> None:
        """A row; its text is no markup."""
        self._rows.append([Text(cell) if isinstance(cell, str) else cell for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table for so many characters as there are."""
        needs = {name: self._need(name) for name in self._names}
        for count in range(len(self._gives) + 1):
            widths = self._widths(needs, self._gives[:count])
            spare = options.max_width - _line(widths)
            if spare >= 0:
                yield from self._shown(self._restored(widths, spare), console, options)
                return
        if self._otherwise:
            yield self._otherwise()
            return
        heads = {name: max(len(name), _LEAST) for name in self._words}
        for text in (self._narrowest(), heads, dict.fromkeys(self._words, _LEAST)):
            widths = self._widths(needs | text, self._gives)
            spare = options.max_width - _line(widths)
            if spare >= 0:
                yield from self._shown(self._restored(widths, spare), console, options)
                return
        yield self._folded(widths)

    def _cells(self, name: str) -> Iterator[Text]:
        number = self._names.index(name)
        yield Text(name)
        yield from (row[number] for row in self._rows)

    def _need(self, name: str) -> int:
        """The characters that make each cell a line. Text that is a line by no means needs half of
        what the column asks for, or all for a word of that length, and gets what is left.
        """
        asked = self._words.get(name)
        if asked is None:
            return max(cell.cell_len for cell in self._cells(name))
        return max(_needed(cell, asked) for cell in self._cells(name))

    def _narrowest(self) -> dict[str, int]:
        """The columns of text, so wide that no word is broken."""
        return {
            name: max(len(name), *(_longest_word(cell) for cell in self._cells(name)))
            for name in self._words
        }

    def _widths(
        self, needs: Mapping[str, int], given: Sequence[str | tuple[str, int]]
    ) -> dict[str, int]:
        """The least once these have given way."""
        least = dict(one for one in given if not isinstance(one, str))
        return {
            name: min(need, max(least.get(name, need), len(name)))
            for name, need in needs.items()
            if name not in given
        }

    def _restored(self, widths: dict[str, int], spare: int) -> dict[str, int]:
        """What is left goes to the text that takes most lines, then to what was shortened by more
        than had to be.
        """
        longest = {name: max(cell.cell_len for cell in self._cells(name)) for name in widths}
        text = [name for name in widths if name in self._words]
        while spare and (broken := [name for name in text if widths[name] < longest[name]]):
            widths[max(broken, key=lambda name: longest[name] / widths[name])] += 1
            spare -= 1
        for name in widths:
            more = min(longest[name] - widths[name], spare)
            widths[name] += more
            spare -= more
        return widths

    def _shown(
        self, widths: Mapping[str, int], console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """The table of these widths. Rich 13, which Debian has, counts a gap after the last column,
        too: it gets that room, and cells whose lines are broken already.
        """
        table = self._empty()
        for name, width in widths.items():
            head = self._cell(Text(name), name, width, console)
            table.add_column(head, justify=self._side(name), width=width, no_wrap=True)
        shown = [n for n, name in enumerate(self._names) if name in widths]
        for row in self._rows:
            cells = ((row[n], self._names[n]) for n in shown)
            table.add_row(*(self._cell(cell, name, widths[name], console) for cell, name in cells))
        yield from console.render(table, options.update(width=options.max_width + _GAP))

    def _cell(self, cell: Text, name: str, width: int, console: Console) -> Text:
        if name not in self._words:
            return shortened(cell, width)
        return Text("\n").join(cell.wrap(console, width, overflow="fold"))

    def _folded(self, widths: Mapping[str, int]) -> Table:
        """Every cell is whole, if need be on several lines."""
        table = self._empty()
        for name in widths:
            table.add_column(name, justify=self._side(name), overflow="fold")
        for row in self._rows:
            cells = zip(self._names, row, strict=True)
            table.add_row(*(cell for name, cell in cells if name in widths))
        return table

    def _side(self, name: str) -> Literal["left", "right"]:
        return "right" if name in self._right else "left"

    def _empty(self) -> Table:
        return Table(
            title=Text(self._title, style="bold"), title_justify="left", box=None,
            header_style="dim", pad_edge=False, padding=(0, _GAP, 0, 0),
        )  # fmt: skip


def shortened(text: Text, most: int) -> Text:
    """Without its middle, if it is longer: names differ at their ends."""
    if text.cell_len <= most:
        return text
    plain, ends = text.plain, most - 1
    return Text(f"{plain[: ends - ends // 2]}…{plain[len(plain) - ends // 2 :]}", style=text.style)


def _needed(cell: Text, asked: int) -> int:
    """The characters that this text needs in a column that asks for so many."""
    if cell.cell_len <= asked:
        return cell.cell_len
    return max(asked // 2, min(asked, _longest_word(cell)))


def _longest_word(cell: Text) -> int:
    return max(map(len, cell.plain.split()), default=0)


def _line(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)
