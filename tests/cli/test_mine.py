"""`slurm-elastic mine`: one table that fits its screen, and sentences a scientist understands."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from cost_cases import config_file
from msgspec.structs import replace
from rich.console import Console

from slurm_elastic.cli.jobs import mine
from slurm_elastic.cli.main import main
from slurm_elastic.watch.view.own_jobs import JobSave, OwnJob, OwnJobs, StartForecast

NOW = 1_800_000_000.0
JOBS = (
    OwnJob(
        id=41, label="41", state="running", name="relax-water-box", slurm_state="RUNNING",
        partitions=("batch", "aws"), nodes="pub[1-2]", clouds=("aws",), started=NOW - 600,
        limit=7200, micro=123_400, at_most=456_700,
        save=JobSave(method="criu", number=3, at=NOW - 120),
    ),
    OwnJob(
        id=43, label="43", state="running", name="own", slurm_state="RUNNING", nodes="st1",
        started=NOW - 90_000, at_most=0, save=JobSave(reason="its comment says ckpt=none"),
    ),
    OwnJob(
        id=44, label="44", state="running", name="boots", slurm_state="CONFIGURING RUNNING",
        nodes="pub3", clouds=("aws",), started=NOW - 60, limit=None, save=JobSave(method="criu"),
    ),
    OwnJob(
        id=45, label="45_[3-9]", state="waiting", tasks=7, name="sweep", partitions=("batch", "aws"),
        reason="Resources: it waits for free nodes; aws is sold out", retry_at=NOW + 300,
        start=StartForecast(partition="batch", seconds=(60, 290, 700), is_guess=True, high=0.5),
        limit=3600, at_most=500_000, save=JobSave(method="criu"),
    ),
    OwnJob(
        id=46, label="46", state="waiting", name="too-big", partitions=("aws",), stuck=True,
        reason="can never start: you asked for 9 nodes; there are at most 6",
        advice="scontrol update jobid=46 numnodes=6", limit=60,
    ),
    OwnJob(
        id=40, label="40", state="ended", name="done", slurm_state="COMPLETED", nodes="pub1",
        clouds=("aws",), started=NOW - 9000, ended=NOW - 5400, micro=98_000,
    ),
)  # fmt: skip
DOCUMENT = OwnJobs(at=NOW, user="ann", since=NOW - 86400, jobs=JOBS)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def printed(document: OwnJobs, width: int) -> str:
    screen = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    mine.render(document, screen)
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    return text


@pytest.mark.parametrize("width", [36, 60, 80, 100, 132, 200])
def test_every_job_and_figure_is_shown_at_any_width(width: int) -> None:
    text = printed(DOCUMENT, width)
    words = "".join(text.split())
    assert "Jobsofann:2run,1boots,8wait,1ended;timesinUTC" in words
    for label in ("41", "43", "44", "45_[3-9]", "46", "40"):
        assert label in words
    for figure in ("$0.1234", "$0.4567", "$0.098", "$0.50", "nolimit", "in~5m"):
        assert figure in words, figure


def test_ended_tasks_of_an_array_have_one_row_for_each_way_to_end() -> None:
    tasks = tuple(
        replace(
            JOBS[-1], id=60 + n, label=f"50_{n}", name="sweep", nodes=f"pub{n % 2 + 1}",
            slurm_state="FAILED" if n == 7 else "COMPLETED", micro=100_000,
        )
        for n in range(50)
    )  # fmt: skip
    text = printed(replace(DOCUMENT, jobs=tasks), 160)
    (completed,) = (line for line in text.splitlines() if "50 (49 tasks)" in line)
    assert "pub[1-2]" in completed
    assert "$4.9" in completed
    assert "50_7" in text
    assert "50 ended" in text


def test_cancelled_tasks_without_nodes_share_a_row_as_well() -> None:
    tasks = tuple(
        replace(JOBS[-1], id=60 + n, label=f"50_{n}", nodes=nodes, slurm_state="CANCELLED")
        for n, nodes in enumerate(("", "pub1", ""))
    )
    assert "50 (3 tasks)" in (text := printed(replace(DOCUMENT, jobs=tasks), 160))
    assert "pub1" in text
    assert "50 (2 tasks)" in printed(replace(DOCUMENT, jobs=tasks[::2]), 160)


def test_running_tasks_of_an_array_have_one_row_with_the_sum_of_their_bounds() -> None:
    tasks = tuple(
        replace(
            JOBS[0], id=70 + n, label=f"70_{n}", nodes=f"pub{n}", micro=100_000, at_most=500_000,
            save=JobSave(method="criu", number=1, at=NOW - 60 * n),
        )
        for n in range(1, 4)
    )  # fmt: skip
    unsaved = replace(tasks[0], id=79, label="70_9", save=JobSave(reason="it holds a lock"))
    text = printed(replace(DOCUMENT, jobs=(*tasks, unsaved)), 160)
    (row,) = (line for line in text.splitlines() if "70 (3 tasks)" in line)
    assert "pub[1-3] (aws)" in row
    assert "$0.30" in row
    assert "$1.50" in row
    assert "07:57 (criu)" in row, "the oldest of their saves"
    assert "70_9" in text
    assert "4 run" in text


def test_a_failed_job_says_how_it_failed() -> None:
    job = replace(JOBS[-1], slurm_state="FAILED", reason="by SIGKILL")
    assert "FAILED by SIGKILL" in printed(replace(DOCUMENT, jobs=(job,)), 160)
    tasks = tuple(
        replace(job, id=80 + n, label=f"80_{n}", reason=reason)
        for n, reason in enumerate(("by SIGKILL", "with exit code 2", "by SIGKILL"))
    )
    assert "80 (2 tasks)" in printed(replace(DOCUMENT, jobs=tasks), 160)


def test_a_wide_screen_has_a_column_for_why_and_one_for_what_is_saved() -> None:
    lines = printed(DOCUMENT, 200).splitlines()
    assert lines[1].split("  ")[0] == "Job"
    assert lines[1].rstrip().endswith("Saved")
    assert "Why " in lines[1]
    (row,) = [line for line in lines if line.startswith("41 ")]
    assert "pub[1-2] (aws)" in row
    assert "since 07:50" in row
    assert row.rstrip().endswith("07:58 (criu)")


def test_at_80_columns_each_reason_follows_once_with_its_jobs() -> None:
    twin = replace(JOBS[4], id=47, label="47")
    lines = printed(replace(DOCUMENT, jobs=(*JOBS, twin)), 80).splitlines()
    assert lines[1].split() == ["Job", "Name", "Where", "When", "Cost", "At", "most", "Saved"]
    assert sum("can never start" in line for line in lines) == 1
    assert any(line.startswith("46, 47: can never start") for line in lines)


def test_the_words_say_what_to_do_and_what_needs_nothing() -> None:
    words = " ".join(printed(DOCUMENT, 200).split())
    assert "; asked again at 08:05:00 UTC" in words
    assert "do: scontrol update jobid=46 numnodes=6" in words
    assert "boots 07:59" in words
    assert "not yet (criu)" in words
    assert "no: its comment says ckpt=none" in words
    assert "since 01-14" in words
    assert "rough guesses" in words


def test_a_user_without_jobs_reads_that(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(OwnJobs(at=NOW, user="ann", since=NOW - 86400), 80)
    assert text == "ann has no job, and had none since 2027-01-14 08:00 UTC.\n"


def test_a_cluster_without_jobs_is_said_to_have_none() -> None:
    text = printed(OwnJobs(at=NOW, user="", since=NOW - 86400), 80)
    assert text == "No job since 2027-01-14 08:00 UTC, and none now.\n"


def test_all_users_are_named_and_what_is_missing_is_said() -> None:
    jobs = tuple(replace(job, user="ben") for job in JOBS)
    text = printed(replace(DOCUMENT, user="", jobs=jobs, slurm_error="no answer in 2s"), 120)
    assert "41 ben" in text
    assert "Slurm does not answer: no answer in 2s. Only jobs in clouds are listed." in text
    assert "and 3 more jobs" in printed(replace(DOCUMENT, left_out=3), 80)


def test_a_forecast_that_rests_on_enough_jobs_has_no_tilde() -> None:
    start = StartForecast(partition="aws", seconds=(0, 290, 700))
    assert mine.start_text(start) == "in 4m 50s"
    assert mine.start_text(replace(start, seconds=(0, 0, 0))) == "now"
    assert mine.when(replace(JOBS[3], begin=NOW + 7200), NOW) == "not before 10:00"
    assert mine.when(replace(JOBS[3], start=None), NOW) == "waits"


def test_a_job_that_was_saved_and_cannot_be_any_more_says_both() -> None:
    save = JobSave(method="criu", number=3, at=NOW, reason="it holds a lock", move="saving")
    assert mine.saved_text(save, NOW) == "08:00 (criu), saving; no new save: it holds a lock"
    others = tuple(replace(job, save=save) if job.id == 41 else job for job in JOBS)
    assert "41: no new save: it holds a lock" in printed(replace(DOCUMENT, jobs=others), 80)


@pytest.mark.parametrize("width", [36, 80, 200])
def test_a_save_of_another_day_has_its_date(width: int) -> None:
    job = replace(JOBS[0], save=JobSave(method="criu", number=3, at=NOW - 3 * 86400))
    assert "01-12 08:00" in printed(replace(DOCUMENT, jobs=(job,)), width)


def test_a_time_to_come_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_file(tmp_path)
    assert main(["--config", str(path), "mine", "--since", "2999-01-01"]) == 2
    assert capsys.readouterr().err == "slurm-elastic: --since is in the future\n"


@pytest.mark.parametrize("since", ["0001-01-01", "99999999999d", "9999-12-31T23:59-02:00"])
def test_a_time_outside_the_calendar_is_wrong_use(
    capsys: pytest.CaptureFixture[str], since: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["mine", "--since", since])
    assert ended.value.code == 2
    assert f"--since: {since!r} is not in the years 1970 to 9999" in capsys.readouterr().err
