"""How far a request goes through the code is counted, and what the counts mean."""

from __future__ import annotations

import ast
import sqlite3
from types import SimpleNamespace

import pytest

from benchmarks import shape
from slurm_elastic import hostlist
from slurm_elastic.units import parse_duration


def test_all_ways_are_served_and_counted():
    for case, serve in shape.CASES.items():
        way = serve()
        assert len(way.functions) >= len(way.files) > 5, case
        assert way.calls > way.jumps > 5, case
        assert way.statements > 0, case


def test_the_same_way_twice_counts_the_same():
    first, second = shape.resume(), shape.resume()
    assert (first.calls, first.jumps, first.statements) == (
        second.calls,
        second.jumps,
        second.statements,
    )


def test_a_call_into_another_file_is_a_jump_and_one_in_the_same_is_none(monkeypatch):
    code = hostlist.expand.__code__
    far = parse_duration.__code__

    def frame(code, back):
        return SimpleNamespace(f_code=code, f_back=back)

    way = shape.Way()
    way._call(frame(code, frame(hostlist.compress.__code__, None)))
    assert (way.calls, way.jumps) == (1, 0)
    library = frame(ast.parse.__code__, frame(far, None))
    way._call(frame(code, library))
    assert (way.calls, way.jumps) == (2, 1), "also through a library"
    way._call(frame(ast.parse.__code__, frame(far, None)))
    assert way.calls == 2, "a library's function is none of the package's"


def test_statements_are_counted_once_each():
    way = shape.Way()
    with sqlite3.connect(":memory:") as db, way.seen():
        db.execute("create table t (a)")
        db.executemany("insert into t values (?)", [(1,), (2,)])
        db.cursor().execute("select a from t").fetchall()
    db.close()
    assert way.statements == 3


@pytest.fixture
def package(tmp_path):
    root = tmp_path / "slurm_elastic"
    (root / "controller").mkdir(parents=True)
    files = {
        "__init__": "",
        "model": "X = 1\n",
        "units": "",
        "client": "class Client:\n    def update_nodes(self, names):\n        self.other.update_nodes(names)\n",
        "controller/__init__": "",
        "controller/a": "from slurm_elastic.model import X\nfrom slurm_elastic import units\nslurm.update_nodes([])\n",
        "controller/b": "def f():\n    from slurm_elastic.controller import a\n    import slurm_elastic.model\n",
    }
    for name, text in files.items():
        (root / f"{name}.py").write_text(text)
    return root


def test_importers_and_callers_of_modules(package):
    found = shape.modules(package)
    assert found["slurm_elastic.controller.a"].imports == {
        "slurm_elastic.model",
        "slurm_elastic.units",
    }
    assert shape.calling(found, "update_nodes") == ["slurm_elastic.controller.a"]
    rows = {row.case: row.ours for row in shape.module_rows(found)}
    assert rows["modules"] == 7
    assert rows["modules with one importer"] == 2, "units and controller.a; model has two"
    assert rows["modules that update nodes"] == 1
    assert rows["modules that change requeue"] == 0
