from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from needs import missing
from selenium.webdriver import Chrome
from status_cases import busy_ledger, config_file

from slurm_elastic.cli.operate import web
from slurm_elastic.cli.orders import departure_orders, save_orders
from slurm_elastic.config.configfile import load
from slurm_elastic.model.exclusion import BREAKER, Exclusion
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.ckptstate.orders import DROPS
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.door.client import facts_of
from slurm_elastic.watch.view import Facts
from slurm_elastic.watch.web.documents import Documents
from tests.watch.web.acting_stage import SUDO, acting_page, forwarded
from tests.watch.web.stage import CHROMIUM, DRIVER, chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    if not (CHROMIUM and DRIVER):
        pytest.skip(missing("chromium", "chromedriver"))
    with chromium() as driver:
        yield driver


CLOUDS = """
  - name: spare
    provider: local
    location: on-premises
    socket: /run/slurm-elastic/spare.sock
"""
POOL = """
  - name: spares
    cloud: spare
    nodes: sp[1-4]
    slurmd_port: 17101
    cpus: 4
    memory: 8G
users:
  operators: [sudo]
"""


@pytest.fixture
def file(open_path: Path) -> Path:
    """A configuration with two clouds, and the group sudo as operators."""
    path = config_file(open_path)
    text = path.read_text().replace("pools:", f"{CLOUDS.strip(chr(10))}\npools:")
    path.write_text(f"{text.rstrip()}{POOL}")
    return path


@pytest.fixture
def ledger(open_path: Path) -> Iterator[Ledger]:
    made = busy_ledger(open_path / "ledger.db")
    yield made
    made.close()


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[SlurmJob]:
    """The jobs of a Slurm that is not here."""
    found: list[SlurmJob] = []

    def read(config: object, _: object, now: float) -> Facts:
        return replace(facts_of(config, now), jobs=tuple(found), nodes={})  # type: ignore[arg-type]

    monkeypatch.setattr(departure_orders, "gather", read)
    return found


@pytest.fixture
def sock(file: Path, ledger: Ledger, jobs: list[SlurmJob], open_path: Path) -> Iterator[Path]:
    with acting_page(file, open_path / "page.sock", group=SUDO) as path:
        yield path


@pytest.fixture
def acting_address(
    file: Path, ledger: Ledger, jobs: list[SlurmJob], open_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:  # fmt: skip
    ledger.exclusions.add(Exclusion(kind=BREAKER, scope="rack", count=3, until=time.time() + 900))
    ledger.health.beat("slurm-elasticd", time.time(), os.getpid())
    (open_path / DROPS).mkdir()
    jobs.append(
        SlurmJob(
            id=41, states=frozenset({"RUNNING"}), nodes=("op1",), start=time.time() - 60,
            user="erin", uid=1000, batch=True, requeue=True, comment="ckpt=signal,saved=file:state",
        )
    )  # fmt: skip

    class Slurm:
        def __init__(self, *_: object) -> None: ...

        def jobs(self) -> list[SlurmJob]:
            return jobs

    monkeypatch.setattr(save_orders, "PromptCli", Slurm)
    config = load(file)
    documents = Documents(web.sources(config, PromptCli(config.slurm), file))
    with (
        acting_page(file, open_path / "page.sock", group=SUDO, documents=documents) as sock,
        forwarded(sock) as address,
    ):
        yield address
