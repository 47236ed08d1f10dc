"""Several clusters in one table: by SSH, by files, with sums, and without those that are away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cost_cases import YAML
from rich.console import Console

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.main import main
from slurm_elastic.cli.operate.clusters_table import clusters_table, gather_clusters
from slurm_elastic.config import configfile
from slurm_elastic.config.sections.other_clusters import OtherCluster
from slurm_elastic.watch.door import other_heads
from slurm_elastic.watch.door.other_heads import read_heads
from slurm_elastic.watch.view import Facts, status_view
from slurm_elastic.watch.view.clusters import ClustersView, clusters_view

NOW = 1_800_000_000.0
Ssh = Callable[[str], Mapping[str, str]]


def document(name: str, at: float = NOW - 5, **more: Any) -> str:
    """What a head of another release may print: with fields that we do not know."""
    total = {
        "market": "spot", "machines": 3, "price_now": 0.3, "cost_live": 1.0, "cost_ended": 0.5,
        "ended": 2, "shine": 1,
    }  # fmt: skip
    return json.dumps({
        "at": at, "cluster": name, "version": 1, "daemon": {"alive": True}, "totals": [total],
        "queue": {"running": 4, "waiting": 2, "oldest_s": 60.0, "reasons": {}}, "new": [1],
        "attention": [{"level": "note", "text": "calm"}, {"level": "bad", "text": f"{name} burns"}],
        **more,
    })  # fmt: skip


@pytest.fixture
def ssh(tmp_path: Path) -> Ssh:
    """Put a script in the place of ssh; its arguments are kept in the file ``asked``."""

    def make(script: str) -> Mapping[str, str]:
        directory = tmp_path / "bin"
        directory.mkdir(exist_ok=True)
        program = directory / "ssh"
        program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/asked\n{script}\n")
        program.chmod(0o755)
        return {"PATH": f"{directory}:/usr/bin:/bin", "HOME": str(tmp_path)}

    return make


def read(environment: Mapping[str, str], *clusters: OtherCluster, now: float = NOW) -> ClustersView:
    return clusters_view(read_heads(clusters, environment, now), now)


WEST = OtherCluster(name="west", ssh="me@head-west", timeout=5.0)


def test_a_head_is_asked_by_ssh_without_a_question(ssh: Ssh, tmp_path: Path) -> None:
    (tmp_path / "answer").write_text(document("west"))
    view = read(ssh(f"cat {tmp_path}/answer; exit 1"), WEST)
    (row,) = view.clusters
    assert (row.name, row.machines, row.price_now, row.cost) == ("west", 3, 0.3, 1.5)
    assert (row.running, row.waiting, row.oldest, row.age) == (4, 2, 60.0, 5.0)
    assert (row.urgent, row.note, row.trouble) == (1, "west burns", "")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[-3:] == ["--", "me@head-west", "slurm-elastic status --json"]
    assert "BatchMode=yes" in asked
    assert "ConnectTimeout=5" in asked


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'ssh: connect to host head-west port 22: No route to host' >&2; exit 255",
         "No route to host"),
        ("echo hello", "ssh ended with 0 and no output"),
        ("echo '{\"at\": 1}'", "its answer is no status of slurm-elastic"),
        ("echo '{'", "its answer is no status of slurm-elastic"),
        ("""echo '{"at": 1, "cluster": "x", "version": 2}'""", "version 2, expected 1"),
        ("exec sleep 100", "no answer in"),
        ("printf '{'; exec cat /dev/zero", "its answer has more than"),
    ],
)  # fmt: skip
def test_a_head_without_an_answer_is_a_row_that_says_so(
    ssh: Ssh, script: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_heads, "MAX_BYTES", 2 << 20)
    began = time.monotonic()
    view = read(ssh(script), OtherCluster(name="west", ssh="head-west", timeout=1.0))
    assert time.monotonic() - began < 60
    (row,) = view.clusters
    assert row.trouble.startswith("no answer (it has never answered here): ")
    assert told in row.trouble
    assert (row.machines, row.price_now, view.missing) == (None, None, ("west",))


def test_it_says_since_when_there_is_no_answer(ssh: Ssh, tmp_path: Path) -> None:
    (tmp_path / "answer").write_text(document("west"))
    read(ssh(f"cat {tmp_path}/answer"), WEST)
    (row,) = read(ssh("exit 255"), WEST, now=NOW + 7200).clusters
    assert row.trouble.startswith("no answer (last answer 2h ago): ")
    assert row.seen == pytest.approx(NOW - 5)
    # Without a home directory only the time is missing.
    nowhere = {**ssh("exit 255"), "HOME": "/proc/nowhere"}
    assert "never answered here" in read(nowhere, WEST).clusters[0].trouble


def test_an_answer_of_many_brackets_costs_its_own_row_alone(tmp_path: Path) -> None:
    (tmp_path / "deep").write_text('{"x":' + "[" * 200_000)
    (tmp_path / "well").write_text(document("well"))
    clusters = [OtherCluster(name=n, file=str(tmp_path / n)) for n in ("deep", "well")]
    deep, well = read({"HOME": str(tmp_path)}, *clusters).clusters
    assert "its answer is no status of slurm-elastic" in deep.trouble
    assert (well.trouble, well.machines) == ("", 3)


def test_figures_that_a_head_does_not_know_are_no_zeros(tmp_path: Path) -> None:
    """A head without its ledger lists no machine, and one without Slurm has no queue."""
    (tmp_path / "blind").write_text(
        document("blind", ledger_error="ledger.db: disk I/O error", totals=[])
    )
    (tmp_path / "deaf").write_text(document("deaf", slurm_error="no answer", queue=None))
    (tmp_path / "well").write_text(document("well"))
    clusters = [OtherCluster(name=n, file=str(tmp_path / n)) for n in ("blind", "deaf", "well")]
    view = read({"HOME": str(tmp_path)}, *clusters)
    blind, deaf, _ = view.clusters
    assert (blind.machines, blind.price_now, blind.cost, blind.running) == (None, None, None, 4)
    assert (deaf.machines, deaf.running, deaf.waiting) == (3, None, None)
    assert view.missing == ("blind", "deaf")
    assert (view.total.machines, view.total.cost, view.total.running) == (6, 3.0, 8)


def test_figures_that_a_head_has_cut_to_ones_own_part_are_not_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "west.json"
    path.write_text(document("west", private=["jobs", "nodes"]))
    view = read({"HOME": str(tmp_path)}, OtherCluster(name="west", file=str(path)))
    (row,) = view.clusters
    assert row.note.startswith("only your own part (PrivateData=jobs,nodes)")
    assert row.machines is not None
    assert view.missing == ("west",)


def test_files_are_read_with_their_age(tmp_path: Path) -> None:
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    new.write_text(document("lab"))
    old.write_text(document("attic", NOW - 7200))
    clusters = [OtherCluster(name=name, file=str(tmp_path / f"{name}.json"))
                for name in ("new", "old", "none")]  # fmt: skip
    view = read({"HOME": str(tmp_path)}, *clusters)
    assert [row.age for row in view.clusters] == [5.0, 7200.0, None]
    assert view.clusters[0].note == "lab burns"
    assert view.clusters[1].note == "its file is 2h old; attic burns"
    assert "No such file" in view.clusters[2].trouble
    assert (view.total.machines, view.total.cost) == (6, 3.0)
    assert view.total.price_now == pytest.approx(0.6)
    assert (view.total.running, view.total.waiting) == (8, 4)
    assert view.missing == ("none",)


def test_the_heads_are_asked_at_the_same_time(ssh: Ssh, tmp_path: Path) -> None:
    (tmp_path / "answer").write_text(document("west"))
    environment = ssh(f"sleep 1; cat {tmp_path}/answer")
    many = [OtherCluster(name=f"c{n}", ssh="head", timeout=30.0) for n in range(8)]
    began = time.monotonic()
    assert not read(environment, *many).missing
    assert time.monotonic() - began < 7


def configured(directory: Path, clusters: str) -> Path:
    state = directory / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    path = directory / "slurm-elastic.yaml"
    path.write_text(YAML.format(state=state, user="root") + clusters)
    path.chmod(0o644)
    return path


def test_the_table_and_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "lab.json").write_text(document("lab", time.time() - 10))
    path = configured(tmp_path, f"clusters: [{{name: lab, file: {tmp_path}/lab.json}}]\n")
    config = configfile.load(path)
    own = status_view(config, Facts(now=time.time(), nodes={}))
    assert own.other_clusters == ("lab",)
    view = gather_clusters(config, own)
    assert [row.name for row in view.clusters] == ["alps", "lab"]
    for width in (120, 80, 50):
        console = Console(width=width, markup=False, emoji=False, highlight=False)
        with console.capture() as captured:
            console.print(clusters_table(view))
        text = captured.get()
        assert max(map(len, text.splitlines())) <= width
        assert "alps" in text
        assert "lab burns" in text
        assert "all" in text
    # Its own Slurm is nowhere, but its row is there.
    assert main(["--config", str(path), "status", "--clusters"]) == 1
    assert "without alps" in capsys.readouterr().out
    assert main(["--config", str(path), "status", "--clusters", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["version"] == 1
    assert [row["name"] for row in printed["clusters"]] == ["alps", "lab"]
    assert printed["total"]["cost"] == 1.5
    (tmp_path / "lab.json").unlink()
    assert main(["--config", str(path), "status", "--clusters"]) == 1
    assert "without alps, lab" in capsys.readouterr().out


def test_without_other_clusters_it_says_what_to_add(tmp_path: Path) -> None:
    config = configfile.load(configured(tmp_path, ""))
    with pytest.raises(ConfigError, match="add them to `clusters`"):
        gather_clusters(config, status_view(config, Facts(now=NOW)))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("{name: a}", "neither 'ssh' nor 'file'"),
        ("{name: a, ssh: h, file: /f}", "both 'ssh' and 'file'"),
        ("{name: a, ssh: -oProxyCommand=x}", "expected HOST or USER@HOST"),
        ("{name: a, ssh: 'h; reboot'}", "expected HOST or USER@HOST"),
        ("{name: a, file: relative}", "an absolute path"),
        ("{name: ../a, ssh: h}", "letters, digits"),
        ("{name: alps, ssh: h}", "another name"),
        ("{name: a, ssh: h}, {name: a, ssh: g}", "another name"),
    ],
)
def test_a_wrong_cluster_is_reported(tmp_path: Path, row: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        configfile.load(configured(tmp_path, f"clusters: [{row}]\n"))
