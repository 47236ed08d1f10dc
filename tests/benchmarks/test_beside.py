"""A benchmark beside that of an earlier commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import beside, traces
from benchmarks.beside import Verdict, compare, environment, unmatched
from benchmarks.report import Report, Row, at_least, compared, noted, report

SCRIPT = """#!/bin/sh
cat >"$3" <<END
{"name": "probe", "machine": "here", "rows": [{"case": "wait", "ours": %s, "reference": null,
 "unit": "s", "ratio": null, "goal": null, "ok": null}]}
END
"""


def turns(*rows: Row) -> list[Report]:
    return [report("probe", [row]) for row in rows]


def test_a_median_beyond_the_range_of_the_old_turns_is_worse() -> None:
    old = turns(*[noted("wait", seconds, "s") for seconds in (1.0, 2.0, 3.0)])
    for seconds, verdict in ((3.1, Verdict.WORSE), (3.0, Verdict.SAME), (0.9, Verdict.BETTER)):
        new = turns(*[noted("wait", value, "s") for value in (0.0, seconds, 9.0)])
        assert [row.verdict for row in compare(old, new)] == [verdict]


def test_the_ratio_to_the_peer_is_compared_where_there_is_a_peer() -> None:
    """A machine that is twice as slow in the new turns slows the peer down, too."""
    old = turns(compared("start", 1.0, 2.0, "s"))
    new = turns(compared("start", 2.0, 4.0, "s"))
    (row,) = compare(old, new)
    assert (row.unit, row.new_median, row.verdict) == ("ratio", 0.5, Verdict.SAME)


def test_a_share_of_the_peers_speed_is_better_if_it_is_greater() -> None:
    old = turns(at_least("speed", 30.0, 100.0, "jobs/s", 0.2))
    new = turns(at_least("speed", 20.0, 100.0, "jobs/s", 0.2))
    assert [row.verdict for row in compare(old, new)] == [Verdict.WORSE]
    assert [row.verdict for row in compare(new, old)] == [Verdict.BETTER]


def test_a_case_that_a_turn_lacks_is_named() -> None:
    old, new = turns(noted("wait", 1.0, "s")), turns(noted("start", 1.0, "s"))
    assert compare(old, new) == []
    assert unmatched(old, new) == ["start", "wait"]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its first commit waits 1 s, its working tree 2 s."""
    place = tmp_path / "repository"
    (place / "scripts").mkdir(parents=True)
    script = place / "scripts" / "bench"
    script.write_text(SCRIPT % 1)
    script.chmod(0o755)
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    for words in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=place, check=True)
    script.write_text(SCRIPT % 2)
    monkeypatch.setattr(beside, "REPOSITORY", place)
    monkeypatch.setattr(beside, "CACHE", tmp_path)
    return place


def test_each_tree_runs_its_own_benchmark(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert beside.main(["HEAD", "probe", "--turns", "2"]) == 1
    assert "1 to 1" in capsys.readouterr().out
    assert beside.main(["HEAD", "probe", "--turns", "1"]) == 1  # in the clone that is there


def test_a_commit_that_does_not_exist_is_named(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        beside.main(["nothing", "probe"])
    assert "COMMIT: found 'nothing', expected a commit" in capsys.readouterr().err


def test_both_trees_read_the_same_histories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older tree's clone lies where no histories are beside it."""
    monkeypatch.delenv(traces.VARIABLE, raising=False)
    monkeypatch.setattr(traces, "data", lambda: tmp_path)
    assert environment()[traces.VARIABLE] == str(tmp_path)
