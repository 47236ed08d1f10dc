"""How far a request goes through the code is counted, and what the counts mean."""

from __future__ import annotations

import ast
import sqlite3
from types import SimpleNamespace

import pytest

from benchmarks import shape
from slurm_elastic.base import hostlist
from slurm_elastic.base.units import parse_duration
from slurm_elastic.state.ledger.schema import LEDGER
from slurm_elastic.state.store.disk import Disk
from slurm_elastic.state.store.journal import Fact

ROOMS_OF_THE_DAEMON = ("slurm_elastic.config", "slurm_elastic.model.causes")


def test_all_ways_are_served_and_counted():
    for case, serve in shape.CASES.items():
        way = serve()
        assert len(way.functions) >= len(way.files) > 5, case
        assert way.calls >= len(way.functions), case
        assert way.statements > 0, case
        assert 0 < way.fakes < len(way.functions), case
        assert (way.appended > 0) == (way.syncs > 0) == (case != "quiet round"), case


def test_what_is_switched_on_is_on_the_way_of_a_resume():
    off, on = shape.resume(), shape.resume(on=True)
    mine = (
        "features/money/admission.py",
        "features/orders/owners.py",
        "features/power/starting.py",
    )
    assert not any(line.startswith(mine) for line in off.lines)
    assert all(any(line.startswith(one) for line in on.lines) for one in mine)
    assert on.readings > off.readings > 0


def test_lines_of_the_journal_and_syncs_are_counted_apart(tmp_path):
    disk = Disk(tmp_path / "ledger.db", LEDGER)
    way = shape.Way()
    with way.seen():
        disk.put([[Fact(rows=[], put="told")], [Fact(rows=[], put="told")]], lambda: 1.0)
    disk.close()
    assert (way.appended, way.syncs) == (2, 1), "they share a sync"


def test_the_same_way_twice_counts_the_same():
    first, second = shape.resume(), shape.resume()
    assert first.lines == second.lines


def test_only_functions_of_the_package_are_counted():
    way = shape.Way()
    for code in (hostlist.expand.__code__, ast.parse.__code__, parse_duration.__code__):
        way._call(SimpleNamespace(f_code=code))
    assert (way.calls, len(way.files)) == (2, 2), "a library's function is none of the package's"


def test_more_clouds_are_no_more_readings_of_slurm():
    assert shape.clouds(3).readings == shape.clouds(1).readings > 0
    assert shape.cloud_order(7).readings == shape.cloud_order(2).readings > 0
    assert shape.cloud_order(1).readings == 0


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
    for room in ("base", "controller", "model"):
        (root / room).mkdir(parents=True)
    files = {
        "__init__": "",
        "base/__init__": "",
        "base/units": "",
        "model/__init__": "",
        "model/cluster": "X = 1\n",
        "client": "class Client:\n    def update_nodes(self, names):\n        self.other.update_nodes(names)\n",
        "controller/__init__": "",
        "controller/a": "from slurm_elastic.model.cluster import X\nfrom slurm_elastic.base import units\nslurm.update_nodes([])\n",
        "controller/b": "def f():\n    from slurm_elastic.controller import a\n    import slurm_elastic.model.cluster\n",
    }
    for name, text in files.items():
        (root / f"{name}.py").write_text(text)
    return root


def test_importers_and_callers_of_modules(package):
    found = shape.modules(package)
    assert found["slurm_elastic.controller.a"].imports == {
        "slurm_elastic.model.cluster",
        "slurm_elastic.base.units",
    }
    assert shape.calling(found, "update_nodes") == ["slurm_elastic.controller.a"]
    rows = {row.case: row.ours for row in shape.module_rows(found)}
    assert rows["modules"] == 9
    assert rows["modules with one importer"] == 2, "units and controller.a; model has two"
    assert rows["modules that update nodes"] == 1
    assert rows["modules that change requeue"] == 0


@pytest.mark.parametrize(
    "module",
    ["machine.local.agent", "machine.hub.service", "machine.jobfiles.copier", "machine.jobfiles.run",
     "machine.ckptroot.main"],
)  # fmt: skip
def test_a_program_of_root_loads_little(module):
    assert module in shape.SMALL_PROGRAMS.values()
    found = shape.loaded(module)
    assert f"slurm_elastic.{module}" in found
    assert len(found) <= shape.LOADED
    assert not any(name.startswith(ROOMS_OF_THE_DAEMON) for name in found)
