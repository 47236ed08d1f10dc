"""What stands in for the disk, by itself; how it goes on and comes back is in ``test_kept``."""

from __future__ import annotations

from contextlib import closing

from slurm_elastic.state.store import view
from slurm_elastic.state.store.endurance import Memory
from slurm_elastic.state.store.journal import Fact
from slurm_elastic.state.store.view import Filler, Schema

MARKS = Schema(
    name="marks", maker="the test", version=1,
    statements=("create table marks (id integer primary key, mark text)",),
    numbered_tables=frozenset({"marks"}),
)  # fmt: skip


def mark(text: str) -> Fact:
    return Fact(put="marks", rows=[{"mark": text}])


def test_each_write_is_numbered_as_a_line_after_those_that_were_there() -> None:
    db = view.open_memory(MARKS)
    Filler(db, MARKS).facts([mark("before")], 5)
    with closing(Memory(db, MARKS, 5)) as memory:
        memory.put([[mark("a")], [mark("b")]], lambda: 1.0)
        with memory.write([mark("c")], lambda: 1.0):
            assert memory.position.number == 7
        memory.put([[mark("d")]], lambda: 1.0)
        assert memory.position.number == 9
        found = [tuple(row) for row in db.execute("select mark, id from marks order by id")]
    lines = (("before", 5), ("a", 6), ("b", 7), ("d", 9))
    assert found == [(text, view.first_id(line)) for text, line in lines]


def test_a_write_of_nothing_is_no_line() -> None:
    with closing(Memory(view.open_memory(MARKS), MARKS)) as memory:
        with memory.write([], lambda: 1.0):
            pass
        assert (memory.position.number, memory.waiting.lines()) == (0, [])
