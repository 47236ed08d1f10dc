"""The site of one seed: a storm, then peace, then the books and the oracle. For ``tests.real.run``."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurm_elastic.base.errors import SlurmElasticError
from tests.oracle import money
from tests.real.stage import RealStage
from tests.real.weather import RealWeather

STORM_S, STEP_S = 40.0, 0.5
REST_S = 120.0
HOUR_S = 3600.0


def run(stage: RealStage) -> None:
    stage.begin()
    weather = RealWeather(stage)  # type: ignore[arg-type]
    stage.note(f"families {weather.families}")
    storm(stage, weather)
    if not stage.books.wrongs:
        rest(stage, weather)


def storm(stage: RealStage, weather: RealWeather) -> None:
    until = time.monotonic() + STORM_S
    while time.monotonic() < until and not stage.books.wrongs:
        stage.advance(STEP_S)
        weather.blow()


def rest(stage: RealStage, weather: RealWeather) -> None:
    """All ends well, whatever was before."""
    weather.heal()
    healed = stage.sched.now
    stage.look_at_ended()
    if stage.orders is not None:
        take_orders_back(stage)
    stage.be_calm()
    settle_down(stage)
    if stage.books.wrongs:
        return
    stage.books.settle(healed)
    for words in money.wrongs(stage.config, stage.now() + HOUR_S):
        stage.books.wrong("money", words)


def take_orders_back(stage: RealStage) -> None:
    orders, deadline = stage.orders, time.monotonic() + REST_S
    orders.reload_plain()
    while (trouble := orders.books.outstanding()) and not stage.books.wrongs:
        _go_on(stage)
        if time.monotonic() > deadline:
            stage.books.wrong("order", trouble)
    while not stage.books.wrongs and not orders.take_all_back():
        _go_on(stage)
        if time.monotonic() > deadline:
            stage.books.wrong("order", "orders cannot be taken back")


def settle_down(stage: RealStage) -> None:
    """Until nothing is left to be done."""
    deadline = time.monotonic() + REST_S
    trouble = "it has just begun"
    while trouble and not stage.books.wrongs:
        _go_on(stage)
        try:
            waiting = sorted(stage.slurm.queue())
            trouble = f"jobs wait: {waiting}" if waiting else stage.books.trouble(held=False)
        except SlurmElasticError as error:
            trouble = str(error)
        if time.monotonic() > deadline:
            stage.books.wrong("no rest", trouble)


def _go_on(stage: RealStage) -> None:
    stage.advance(1.0)
    for owner in stage.owners:
        stage.start(owner)
    stage.slurm.let_go()
    stage.look_at_ended()


def logged(stage: RealStage) -> Iterator[str]:
    """Errors that no code of ours foresaw."""
    for owner in stage.owners:
        path = stage.site.layout.log / f"{owner}.out"
        text = path.read_text(errors="replace") if path.exists() else ""
        if "Traceback (most recent call last)" in text:
            yield f"{owner}: {text[text.index('Traceback') :].strip().splitlines()[-1]}"


def processor_s() -> float:
    """Seconds of a processor that all processes of this place have taken, as far as they are there."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, path.read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def state_of(stage: RealStage) -> str:
    commands = (
        ["sinfo", "-N", "-o", "%N %P %T %E"], ["squeue", "--all", "-o", "%i %P %T %N %r %S %u %a"],
        ["scontrol", "show", "job"],
    )  # fmt: skip
    return "\n".join(stage.site.run(command, check=False).stdout for command in commands)


def main() -> int:
    seed, out = int(sys.argv[1]), Path(sys.argv[2])
    logging.disable(logging.WARNING)
    stage = RealStage(seed)
    began = time.monotonic()
    try:
        run(stage)
        for words in logged(stage):
            stage.books.wrong("unforeseen", words)
    except Exception as error:  # noqa: BLE001 - the outcome names it
        stage.books.wrong("site", f"{type(error).__name__}: {error}")
        stage.note(traceback.format_exc())
    if stage.books.wrongs and stage.has_begun:
        stage.note(state_of(stage))
    spent = processor_s()
    stage.close()
    stage.books.counts["seconds of a processor"] = round(spent)
    _write(stage, out, time.monotonic() - began)
    return 0


def _write(stage: RealStage, out: Path, seconds: float) -> None:
    books = stage.books
    counts: dict[str, Any] = {
        "machines made": len(books.machines), "jobs": len(books.jobs),
        "jobs completed": len(books.completed), "jobs fallen": len(books.fallen), **books.counts,
    }  # fmt: skip
    outcome = {
        "seed": stage.seed, "wrongs": books.wrongs, "struck": stage.struck, "counts": counts,
        "seconds": seconds, "features": sorted(stage.features), "differences": stage.differences(),
    }  # fmt: skip
    (out / "outcome.json").write_text(json.dumps(outcome, indent=1))
    (out / "trace").write_text("\n".join(stage.trace))
    shutil.copytree(stage.site.layout.log, out / "log", dirs_exist_ok=True)
    shutil.copytree(stage.site.layout.dir / "etc", out / "etc", dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(main())
