"""What is compared between the Slurm in memory and a real one, on answers made by hand."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from tests.chaos import order_weather
from tests.real import stage
from tests.real.compared import Shown, differences
from tests.real.site import config_of

NOW = time.time()
JOB = SlurmJob(id=7, states=frozenset({"PENDING"}), reason="Priority", priority=9)
NODE = SlurmNode(name="n1", states=frozenset({"IDLE", "CLOUD", "POWERED_DOWN"}))
BEFORE = Shown({7: JOB}, {"n1": NODE}, NOW)
VERSION = (22, 5)


def found(command: str, *of: Any, after: Shown, error: SlurmError | None = None) -> list[str]:
    asked = (command, of, {"state": "DRAIN", "reason": "x"} if command == "update_nodes" else {})
    return [
        line for line in differences(asked, BEFORE, after, error, VERSION) if line != "compared"
    ]


def test_nothing_differs_if_slurm_does_what_the_fake_does() -> None:
    now = time.time()
    held = replace(JOB, reason="JobHeldUser", priority=0)
    assert found("hold", 7, after=BEFORE._replace(jobs={7: held})) == []
    drained = replace(
        NODE, states=NODE.states | {"DRAIN"}, reason="x", reason_user="slurm", reason_at=now
    )
    assert found("update_nodes", ["n1"], after=BEFORE._replace(nodes={"n1": drained})) == []


def test_a_field_that_differs_is_named_with_both_values() -> None:
    (line,) = found("hold", 7, after=BEFORE._replace(jobs={7: replace(JOB, reason="JobHeldUser")}))
    assert line == "hold of PENDING Priority: priority: Slurm 9, the fake 0"


def test_a_refusal_by_one_of_both_is_a_difference() -> None:
    error = SlurmError(("scontrol",), 1, "Invalid job id specified")
    (line,) = found("hold", 7, after=BEFORE, error=error)
    assert line.startswith("hold of PENDING Priority: Slurm refuses it (Invalid job id")


def test_a_real_site_has_what_the_drawn_jobs_and_orders_use() -> None:
    """A part that is added to the virtual site alone would end each real one."""
    chaos = Path(order_weather.__file__).parent
    texts = [
        (chaos / name).read_text()
        for name in ("order_weather.py", "order_books.py", "drawn_jobs.py")
    ]
    used = set(re.findall(r"\bstage\.(\w+)", "\n".join(texts))) - {"Stage"}
    made = set(re.findall(r"self\.(\w+)\b[^=\n]*? = ", Path(stage.__file__).read_text()))
    made |= set(re.findall(r"self\.(\w+)[,:]", Path(stage.__file__).read_text()))
    assert used - made - set(dir(stage.RealStage)) == set()


def test_drawn_sites_have_short_times_and_files_that_the_reader_accepts() -> None:
    for seed in range(1, 6):
        config = config_of(seed)
        assert all(config.suspend_time(cloud) <= 86400.0 for cloud in config.clouds)
        assert config.timings.resume_timeout <= 25.0
