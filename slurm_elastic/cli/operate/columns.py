"""Tables, and the one rule by which they shrink if their rows are wider than the screen.

Each row is one line. Only the columns in ``gives`` shrink, in that order, and only as many of them
as needed. ``"Name"`` alone: the column is left out. ``("Name", 8)``: its cells are shortened in
their middle, to at least 8 characters. ``wrapped`` names columns of text and the width at which
their text wraps; no other column shrinks for them. If the rows are still too wide, the table takes
its other form (``otherwise``). If it has no other form, columns of text become as narrow as their
longest word, then words are broken, and the cells of all other columns are folded last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

_GAP = 2  # characters between two columns
_MIN_WIDTH = 8  # narrowest column of text, in characters, when words are broken


class Rows:
    """A table with a bold title at its left; ``right``: names of right-aligned columns."""

    def __init__(
        self,
        title: str,
        *names: str,
        right: Collection[str] = (),
        wrapped: Mapping[str, int] | None = None,
        gives: Sequence[str | tuple[str, int]] = (),
        otherwise: Callable[[], RenderableType] | None = None,
    ) -> None:
        self._title = title
        self._names = names
        self._right = right
        self._wrapped = wrapped or {}
        self._gives = gives
        self._otherwise = otherwise
        self._rows: list[Sequence[Text]] = []
        self._marked: set[int] = set()

    def add(self, *cells: str | Text, is_marked: bool = False) -> None:
        """Add a row, in reverse colours if it is marked. Rich interprets no markup in its text."""
        if is_marked:
            self._marked.add(len(self._rows))
        self._rows.append([Text(cell) if isinstance(cell, str) else cell for cell in cells])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, for the width of this console."""
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
        heads = {name: max(len(name), _MIN_WIDTH) for name in self._wrapped}
        for text in (self._narrowest(), heads, dict.fromkeys(self._wrapped, _MIN_WIDTH)):
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
        """The width (characters) at which each cell is one line.

        A column of text whose text wraps anyway needs half of the width asked for, or more if it
        has a longer word; ``_restored`` gives it the spare width.
        """
        asked = self._wrapped.get(name)
        if asked is None:
            return max(cell.cell_len for cell in self._cells(name))
        return max(_needed(cell, asked) for cell in self._cells(name))

    def _narrowest(self) -> dict[str, int]:
        """The widths of the columns of text at which no word is broken."""
        return {
            name: max(len(name), *(_longest_word(cell) for cell in self._cells(name)))
            for name in self._wrapped
        }

    def _widths(
        self, needs: Mapping[str, int], reduced: Sequence[str | tuple[str, int]]
    ) -> dict[str, int]:
        """The narrowest widths after the columns in ``reduced`` were left out or shortened."""
        least = dict(entry for entry in reduced if not isinstance(entry, str))
        return {
            name: min(need, max(least.get(name, need), len(name)))
            for name, need in needs.items()
            if name not in reduced
        }

    def _restored(self, widths: dict[str, int], spare: int) -> dict[str, int]:
        """Spend the ``spare`` characters: first on text with most lines, then on cut cells."""
        longest = {name: max(cell.cell_len for cell in self._cells(name)) for name in widths}
        text = [name for name in widths if name in self._wrapped]
        while spare and (broken := [name for name in text if widths[name] < longest[name]]):
            widths[max(broken, key=lambda name: longest[name] / widths[name])] += 1
            spare -= 1
        for name in widths:
            gain = min(longest[name] - widths[name], spare)
            widths[name] += gain
            spare -= gain
        return widths

    def _shown(
        self, widths: Mapping[str, int], console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """The table with these widths.

        Rich 13 (Debian's) also counts a gap after the last column, so we give it ``_GAP`` more
        characters, and cells whose lines we have broken ourselves.
        """
        table = self._empty()
        for name, width in widths.items():
            head = self._cell(Text(name), name, width, console)
            table.add_column(head, justify=self._side(name), width=width, no_wrap=True)
        shown = [n for n, name in enumerate(self._names) if name in widths]
        for number, row in enumerate(self._rows):
            cells = ((row[n], self._names[n]) for n in shown)
            table.add_row(
                *(self._cell(cell, name, widths[name], console) for cell, name in cells),
                style="reverse" if number in self._marked else None,
            )
        yield from console.render(table, options.update(width=options.max_width + _GAP))

    def _cell(self, cell: Text, name: str, width: int, console: Console) -> Text:
        if name not in self._wrapped:
            return shortened(cell, width)
        return Text("\n").join(cell.wrap(console, width, overflow="fold"))

    def _folded(self, widths: Mapping[str, int]) -> Table:
        """The table with every cell complete, on several lines if needed."""
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


def shortened(text: Text, width: int) -> Text:
    """The text without its middle if it is wider than ``width``: names differ at their ends."""
    if text.cell_len <= width:
        return text
    plain, ends = text.plain, width - 1
    return Text(f"{plain[: ends - ends // 2]}…{plain[len(plain) - ends // 2 :]}", style=text.style)


def _needed(cell: Text, asked: int) -> int:
    """The width that this text needs in a column that wraps at ``asked`` characters."""
    if cell.cell_len <= asked:
        return cell.cell_len
    return max(asked // 2, min(asked, _longest_word(cell)))


def _longest_word(cell: Text) -> int:
    return max(map(len, cell.plain.split()), default=0)


def _line(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)
