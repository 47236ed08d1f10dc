"""A checkpoint method of another package: whatever it does is a save that failed, in time, in a line."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from patience import eventually

from slurm_elastic.base.errors import CheckpointError, ConfigError
from slurm_elastic.checkpointers import guarded, open_checkpointer
from slurm_elastic.checkpointers.fake import FakeCheckpointer
from slurm_elastic.checkpointers.guarded import GuardedCheckpointer
from slurm_elastic.ckptman import wiring
from slurm_elastic.config import configfile, job_checkpoint, method_kinds
from slurm_elastic.config.method_kinds import table
from slurm_elastic.config.sections.checkpoint import CheckpointSettings, PoolCheckpoint
from slurm_elastic.model.protocols import Checkpointer
from slurm_elastic.slurm.hooks import submit_filter
from slurm_elastic.testing.saving import Deadlines, Holds, SaveContract, Spoils
from tests.checkpointers.test_fake import FakeBed
from tests.outside import announce, imported_from, site_text

CODE = """
from slurm_elastic.checkpointers.fake import FakeCheckpointer
from slurm_elastic.config.method_kinds import MethodKind

class Mine(FakeCheckpointer):
    name = "mine"

METHOD = MethodKind(name="mine", open=lambda config, slurm, look: Mine(), api=1)
"""
SITE = site_text("checkpoint: {method: mine}")
RUN = FakeBed().run()


class GuardedBed(FakeBed):
    """The method in memory, as if it were somebody else's."""

    def __init__(self) -> None:
        self.theirs = FakeCheckpointer()
        self.checkpointer: Any = GuardedCheckpointer("fake", self.theirs)

    def spoil(self, image: Any) -> None:
        self.theirs.spoilt.add((image.job, image.number))

    def stick(self, run: Any) -> None:
        self.theirs.seconds = 1000.0

    def works(self, run: Any) -> bool:
        return (run.job, run.attempt) not in self.theirs.held


@pytest.fixture
def bed() -> GuardedBed:
    return GuardedBed()


class TestGuarded(SaveContract, Spoils, Deadlines, Holds):
    pass


def save(method: Checkpointer, *, stop: bool = False, within: float = 60.0) -> Any:
    return method.checkpoint(RUN, deadline=time.time() + within, stop=stop)


# what a method may get wrong


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ZeroDivisionError("a\nb"), "method fake fails: ZeroDivisionError: a b"),
        (SystemExit(3), "method fake fails: SystemExit: 3"),
        (ValueError("x" * 10**6), "more characters"),
        (CheckpointError("a\nb" + "x" * 10**6), "more characters"),
    ],
    ids=("error", "exit", "long", "long of ours"),
)
def test_what_it_raises_is_a_failed_save_of_one_line(
    bed: GuardedBed, error: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    calls: tuple[tuple[str, Callable[[], object]], ...] = (
        ("checkpoint", lambda: save(bed.checkpointer)),
        ("release", lambda: bed.checkpointer.release(RUN)),
        ("images", lambda: bed.checkpointer.images(RUN)),
        ("verify", lambda: bed.checkpointer.verify(None)),
        ("remove", lambda: bed.checkpointer.remove(7)),
    )
    for name, call in calls:
        monkeypatch.setattr(bed.theirs, name, fails)
        with pytest.raises(CheckpointError) as caught:
            call()
        assert why in str(caught.value)
        assert len(str(caught.value)) < 1200
        assert "\n" not in str(caught.value)
    for name in ("origin", "hindered", "is_at_work"):
        monkeypatch.setattr(bed.theirs, name, fails)
    assert bed.checkpointer.origin(RUN) is None
    assert bed.checkpointer.hindered(RUN) == ""
    assert bed.checkpointer.is_at_work(RUN) is False


@pytest.mark.parametrize(
    "odd",
    [
        {"seconds": None},
        {"seconds": float("nan")},
        {"taken": float("inf")},
        {"size": None},
        {"number": "one"},
        {"number": 2**70},
        {"attempt": -1},
        {"path": Path("/x")},
    ],
    ids=lambda odd: " ".join(f"{name} {value}" for name, value in odd.items()),
)
def test_an_image_that_the_journal_could_not_tell_again_is_a_failed_save(
    bed: GuardedBed, odd: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    take = bed.theirs.checkpoint
    monkeypatch.setattr(bed.theirs, "checkpoint", lambda *a, **k: replace(take(*a, **k), **odd))
    with pytest.raises(CheckpointError, match="method fake fails: "):
        save(bed.checkpointer, stop=True)
    assert bed.works(RUN)


@pytest.mark.parametrize("what", ["nothing", "another job's", "another method's"])
def test_an_answer_that_is_no_image_of_the_job_is_a_failed_save_and_the_run_goes_on(
    bed: GuardedBed, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = bed.theirs.checkpoint

    def wrong(*args: Any, **kwargs: Any) -> Any:
        image = take(*args, **kwargs)
        fields = {"another job's": {"job": 99}, "another method's": {"method": "criu"}}
        return replace(image, **fields[what]) if what in fields else None

    monkeypatch.setattr(bed.theirs, "checkpoint", wrong)
    with pytest.raises(CheckpointError, match="method fake fails: ValueError: found"):
        save(bed.checkpointer, stop=True)
    assert bed.works(RUN)


def test_a_save_that_hangs_is_left_behind_and_its_run_goes_on_when_it_ends(
    bed: GuardedBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded, "GRACE_S", 0.1)
    take, ends = bed.theirs.checkpoint, threading.Event()
    released = threading.Event()

    def late(*args: Any, **kwargs: Any) -> Any:
        ends.wait(60)
        return take(*args, **kwargs | {"deadline": time.time() + 60})

    def release(run: Any) -> None:
        FakeCheckpointer.release(bed.theirs, run)
        released.set()

    monkeypatch.setattr(bed.theirs, "checkpoint", late)
    monkeypatch.setattr(bed.theirs, "release", release)
    with pytest.raises(CheckpointError, match="TimeoutError: no answer"):
        save(bed.checkpointer, stop=True, within=0.1)
    assert released.is_set(), "nobody knows whether it was stopped"
    released.clear()
    assert save(GuardedCheckpointer("fake", FakeCheckpointer())), "a periodic save of another"
    ends.set()
    assert released.wait(60)
    assert bed.works(RUN)


def test_a_later_save_that_does_not_stop_the_run_leaves_it_to_the_one_that_did(
    bed: GuardedBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded, "GRACE_S", 0.1)
    take, ends = bed.theirs.checkpoint, threading.Event()

    def late(*args: Any, **kwargs: Any) -> Any:
        if kwargs["stop"]:
            ends.wait(60)
        return take(*args, **kwargs | {"deadline": time.time() + 60})

    monkeypatch.setattr(bed.theirs, "checkpoint", late)
    with pytest.raises(CheckpointError, match="TimeoutError: no answer"):
        save(bed.checkpointer, stop=True, within=0.1)
    save(bed.checkpointer)
    ends.set()
    eventually(lambda: any(c[0] == "checkpoint" and c[-1] for c in bed.theirs.calls))
    eventually(lambda: bed.works(RUN))


def test_a_late_save_does_not_let_go_what_a_later_one_holds(
    bed: GuardedBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded, "GRACE_S", 0.1)
    take, ends, over = bed.theirs.checkpoint, threading.Event(), threading.Event()

    def late(*args: Any, **kwargs: Any) -> Any:
        ends.wait(60)
        try:
            return take(*args, **kwargs | {"deadline": time.time() + 60})
        finally:
            over.set()

    monkeypatch.setattr(bed.theirs, "checkpoint", late)
    with pytest.raises(CheckpointError, match="TimeoutError: no answer"):
        save(bed.checkpointer, stop=True, within=0.1)
    monkeypatch.setattr(bed.theirs, "checkpoint", take)
    save(bed.checkpointer, stop=True)
    (thread,) = bed.checkpointer._calls._abandoned[RUN.job]
    ends.set()
    assert over.wait(60)
    thread.join(60)
    assert not bed.works(RUN), "it is held for its requeue"


# how it is found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with imported_from(tmp_path, monkeypatch, table.cache_clear) as folder:
        yield folder


def put(folder: Path, code: str = CODE, name: str = "mine") -> None:
    (folder / "outside_mine.py").write_text(code)
    announce(folder, method_kinds.GROUP, name, "outside_mine:METHOD")


def test_the_site_and_jobs_may_name_it(folder: Path) -> None:
    put(folder)
    config = configfile.parse(SITE, "site.yaml")
    assert config.checkpoint.method == "mine"
    assert job_checkpoint.parse_comment("ckpt=mine,limit") == ("mine", {"limit": ""})
    assert job_checkpoint.parse_features("ckpt_mine&bigmem") == ("mine", {})
    plan = job_checkpoint.resolve("", "", PoolCheckpoint(), CheckpointSettings(method="mine"))
    assert (plan.method, plan.refused) == ("mine", None)
    assert "mine" in submit_filter._saving(config)["methods"]  # type: ignore[operator]
    opened = open_checkpointer("mine", config, None, lambda job: None)  # type: ignore[arg-type]
    assert isinstance(opened, GuardedCheckpointer)
    assert save(opened).method == "mine"


def test_what_is_not_there_is_told_with_what_is(folder: Path) -> None:
    put(folder)
    with pytest.raises(ConfigError) as caught:
        configfile.parse(SITE.replace("mine", "mien"), "site.yaml")
    said = str(caught.value)
    assert "site.yaml:3: checkpoint.method: found 'mien', expected one of none, signal," in said
    assert "did you mean mine?" in said
    with pytest.raises(ValueError, match=r"ckpt=mien: expected one of none, .*, mine"):
        job_checkpoint.parse_comment("ckpt=mien")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import a_module_that_is_not_there", "cannot be imported: ModuleNotFoundError"),
        ("METHOD = 7", "outside_mine:METHOD is no MethodKind"),
        (CODE.replace("api=1", "api=9"), "made for interface 9 of checkpoint methods"),
        (CODE.replace('name="mine"', 'name="yours"'), "outside_mine:METHOD calls itself yours"),
        (CODE.replace("Mine(), api", "1 / 0, api"), "cannot be opened: ZeroDivisionError"),
        (CODE.replace("Mine(), api", "{}['X'], api"), "cannot be opened: KeyError: 'X'"),
        (
            CODE.replace("Mine(), api", "__import__('threading').Event().wait(), api"),
            "cannot be opened: TimeoutError: no answer",
        ),
    ],
    ids=("import", "other", "api", "name", "open", "key", "mute"),
)
def test_one_that_cannot_be_used_is_a_mistake_of_the_file_and_keeps_no_service_away(
    folder: Path,
    code: str,
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guarded, "CALL_TIMEOUT_S", 0.5)
    put(folder, code)
    if "cannot be opened" not in why:
        with pytest.raises(ConfigError) as caught:
            configfile.parse(SITE, "site.yaml")
        assert why in str(caught.value)
    config = configfile.parse(SITE, "site.yaml", whole=False)
    with caplog.at_level(logging.ERROR):
        found = wiring._open_methods(config, None, SimpleNamespace(find=None))  # type: ignore[arg-type]
    assert "mine" not in found
    assert "signal" in found
    assert why in caplog.text
    assert len(caplog.records) == 1


def test_a_name_that_is_ours_is_a_mistake_and_ours_is_used(folder: Path) -> None:
    put(folder, name="signal")
    text = SITE.replace("method: mine", "method: signal")
    with pytest.raises(ConfigError, match="which several packages have: slurm_elastic"):
        configfile.parse(text, "site.yaml")
    config = configfile.parse(text, "site.yaml", whole=False)
    opened = open_checkpointer("signal", config, None, lambda job: None)  # type: ignore[arg-type]
    assert not isinstance(opened, GuardedCheckpointer)
