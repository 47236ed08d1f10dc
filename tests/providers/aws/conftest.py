"""An emulated EC2, one for the tests of a file, and a provider's bed on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated import running_ec2
from providers.aws.bed import AwsBed
from providers.aws.making_account import Account

from slurm_elastic.sandbox.ec2.control import Ec2Control


@pytest.fixture(scope="module")
def ec2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ec2Control]:
    with running_ec2(tmp_path_factory.mktemp("ec2")) as control:
        yield control


@pytest.fixture
def bed(ec2: Ec2Control) -> AwsBed:
    return AwsBed(ec2)


@pytest.fixture
def account(ec2: Ec2Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Account:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    return Account(ec2, tmp_path)
