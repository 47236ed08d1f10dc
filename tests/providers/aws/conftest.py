"""An emulated EC2, one for the tests of a file, and a provider's bed on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from emulated import running_ec2
from providers.aws.bed import AwsBed

from slurm_elastic.sandbox.ec2_control import Ec2Control


@pytest.fixture(scope="module")
def ec2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ec2Control]:
    with running_ec2(tmp_path_factory.mktemp("ec2")) as control:
        yield control


@pytest.fixture
def bed(ec2: Ec2Control) -> AwsBed:
    return AwsBed(ec2)
