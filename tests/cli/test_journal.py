"""``slurm-elastic journal``: a backup that is whole, and put back on this head or another one."""

from __future__ import annotations

import fcntl
import os
from contextlib import closing
from pathlib import Path
from pwd import getpwuid

import pytest
from ledger_cases import T0, instance, spec
from status_cases import config_file

from slurm_elastic.cli.main import main
from slurm_elastic.model.causes import Quoted
from slurm_elastic.state import heads
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ledger import Ledger


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A head with a machine, and a counter of the other service."""
    place = tmp_path / "head"
    place.mkdir()
    config_file(place)
    with closing(Ledger(place / "ledger.db")) as ledger:
        ledger.launches.record_intent(spec(), "r", T0)
        ledger.machines.record_launch("g1", [instance()], T0 + 1)
    with closing(CheckpointState(place / "checkpoints.db")) as checkpoints:
        checkpoints.count({"a": 2.0})
    return place


def run(place: Path, *words: str) -> int:
    return main(["--config", str(config_file(place)), "journal", *words])


def known(place: Path) -> tuple[list[str], dict[str, float]]:
    with closing(Ledger(place / "ledger.db")) as ledger:
        machines = [m.instance.id for m in ledger.machines.live()]
    with closing(CheckpointState(place / "checkpoints.db")) as checkpoints:
        return machines, dict(checkpoints.counters())


def test_another_head_goes_on_with_an_export(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, other = tmp_path / "kept.jsonl", tmp_path / "other"
    assert run(state, "export", str(kept)) == 0
    assert kept.stat().st_mode & 0o777 == 0o600
    other.mkdir()
    assert run(other, "import", str(kept)) == 0
    assert "start the services now" in capsys.readouterr().out
    assert known(other) == known(state) == (["i-1"], {"a": 2.0})
    with closing(Ledger(other / "ledger.db")) as ledger:
        ledger.machines.record_end("aws", ["i-1"], Quoted(text="idle"), T0 + 9)
    assert known(other)[0] == []


def test_newer_facts_are_lost_only_where_that_is_said(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = str(tmp_path / "kept.jsonl")
    assert run(state, "export", kept) == 0
    with closing(Ledger(state / "ledger.db")) as ledger:
        ledger.machines.record_end("aws", ["i-1"], Quoted(text="idle"), T0 + 9)
    assert run(state, "import", kept) == 1
    assert "lines that only this head has would be lost" in capsys.readouterr().err
    assert known(state)[0] == []
    assert run(state, "import", "--older", kept) == 0
    assert known(state)[0] == ["i-1"]


@pytest.mark.parametrize("lock", ["daemon.lock", "ckptman.lock"])
def test_nothing_is_put_back_under_a_service(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lock: str
) -> None:
    kept = str(tmp_path / "kept.jsonl")
    assert run(state, "export", kept) == 0
    with (state / lock).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert run(state, "import", kept) == 1
    assert "stop it first (systemctl stop slurm-elastic" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty, expected an export"),
        (b"hello\n", "line 1 is damaged, expected an unchanged export"),
    ],
)
def test_what_is_no_export_changes_nothing(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, why: str
) -> None:
    (tmp_path / "x").write_bytes(content)
    assert run(state, "import", str(tmp_path / "x")) == 1
    assert why in capsys.readouterr().err
    assert known(state)[0] == ["i-1"]


def test_a_half_export_is_none(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.jsonl"
    assert run(state, "export", str(kept)) == 0
    os.truncate(kept, kept.stat().st_size - 5)
    assert run(state, "import", str(kept)) == 1
    assert "is damaged" in capsys.readouterr().err


def test_verify_says_where_the_damage_is_and_what_it_costs(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(state, "verify") == 0
    assert "ledger: 1 segment, 3 lines, 3 facts\n" in capsys.readouterr().out
    journal = state / "journal" / "ledger-000001.jsonl"
    first, second, third = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(first + second.replace(b"pub1", b"puz1", 1) + third)
    assert run(state, "verify") == 1
    told = capsys.readouterr().out
    begin, end = len(first), len(first + second)
    assert f"{journal}: line 2, bytes {begin} to {end}: is damaged" in told
    assert "1 lines are lost" in told
    journal.write_bytes(first + second + third + third[:9])
    assert run(state, "verify") == 0
    assert "half a line of an unfinished write" in capsys.readouterr().out
    journal.write_bytes(first + second + third[:9])
    assert run(state, "verify") == 1, "that line was told of"
    assert "1 lines are lost" in capsys.readouterr().out
    journal.unlink()
    assert run(state, "verify") == 1
    assert "ledger: the journal has disappeared: 2 lines are lost" in (capsys.readouterr().out)


def test_where_nothing_was_ever_kept_there_is_nothing_to_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "verify") == 0
    assert "ledger: there is no journal yet" in capsys.readouterr().out


def test_an_export_of_a_damaged_journal_says_what_it_lacks(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = max((state / "journal").glob("ledger-*.jsonl"))
    raw = bytearray(newest.read_bytes())
    raw[150] ^= 1
    newest.write_bytes(raw)
    assert run(state, "export", str(tmp_path / "kept.jsonl")) == 1
    assert "is damaged" in capsys.readouterr().out


def head_of_two(place: Path, shared: Path) -> Path:
    """The configuration of one of two heads on which no service has run."""
    place.mkdir()
    file = config_file(place)
    own = getpwuid(os.getuid()).pw_name
    text = file.read_text().replace("slurm: {", f"slurm: {{user: {own}, ")
    file.write_text(f"{text}ha: {{directory: {shared}}}\n")
    return file


def test_two_heads_begin_with_what_one_knew(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, shared = str(tmp_path / "kept.jsonl"), tmp_path / "shared"
    assert run(state, "export", kept) == 0
    one = head_of_two(tmp_path / "heada", shared)
    assert main(["--config", str(one), "journal", "import", kept]) == 0
    (tmp_path / "headb").mkdir()
    heads.link(tmp_path / "headb", shared)
    assert known(tmp_path / "heada") == known(tmp_path / "headb") == known(state)
    assert heads.Epochs(shared).take("another").number == 2
    assert main(["--config", str(one), "journal", "import", "--older", kept]) == 1
    assert "another (epoch 2) acts" in capsys.readouterr().err
