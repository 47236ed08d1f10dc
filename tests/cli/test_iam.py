"""``iam render``: golden documents; ``UPDATE_GOLDEN=1`` writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_elastic.cli.main import main

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "data" / "config" / "rights.yaml"
CASES = {
    "iam-aws.json": ("aws", "--cloud", "aws"),
    "iam-aws-watchdog.json": ("aws", "--cloud", "aws", "--for", "watchdog"),
    "iam-aws-images.json": ("aws", "--cloud", "aws", "--for", "images"),
    "iam-aws-make.json": ("aws", "--cloud", "aws", "--for", "make"),
    "iam-azure.json": ("azure",),
    "iam-azure-watchdog.json": ("azure", "--for", "watchdog"),
    "iam-gcp.json": ("gcp",),
    "iam-gcp-watchdog.json": ("gcp", "--for", "watchdog"),
    "iam-openstack-make.json": ("openstack", "--for", "make"),
    "iam-fleet.json": ("aws", "--cloud", "fleet"),
    "iam-openstack.json": ("openstack",),
    "iam-openstack-watchdog.json": ("openstack", "--for", "watchdog"),
    "iam-openstack-images.json": ("openstack", "--for", "images"),
    "iam-opennebula.sh": ("opennebula",),
    "iam-opennebula-images.sh": ("opennebula", "--for", "images"),
}


def render(*arguments: str, config: Path = CONFIG) -> int:
    return main(["--config", str(config), "iam", "render", *arguments])


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert render(*CASES[name]) == 0
    told = capsys.readouterr()
    golden = ROOT / "golden" / name
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(told.out)
    assert told.out == golden.read_text()
    assert told.err.startswith("# ")


def test_what_no_policy_holds_is_said_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    render("aws", "--cloud", "aws")
    said = capsys.readouterr().err
    assert "hold vCPU quota, spot Standard (L-34B43A08) near 16" in said
    assert "x1e" not in said
    render("openstack")
    assert "--instances 16 --cores 64 --ram 131072 PROJECT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("aws",), "have provider aws: add --cloud with aws, fleet"),
        (("docker",), "found none with provider 'docker', expected one of: aws, azure, "),
        (("aws", "--cloud", "stack"), "found 'stack', expected a cloud of provider aws"),
    ],
)
def test_a_wrong_question(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert render(*arguments) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.out == ""


def test_a_cloud_without_accounts_and_a_cluster_without_uuid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "slurm-elastic.yaml"
    text = (ROOT / "data" / "config" / "good.yaml").read_text()
    path.write_text(text)
    assert render("aws", config=path) == 2
    assert "cluster.uuid is not set" in capsys.readouterr().err
    path.write_text(
        text.replace("name: demo", "name: demo\n  uuid: 7d1f0c52-4d8e-4f5b-9a3e-0f6c1f5f0a11", 1)
    )
    assert render("local", config=path) == 2
    assert "no accounts with rights" in capsys.readouterr().err


def test_nothing_is_made_in_opennebula(capsys: pytest.CaptureFixture[str]) -> None:
    assert render("opennebula", "--for", "make") == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "creates nothing in OpenNebula" in told.err


def test_the_watchdog_of_opennebula_has_no_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert render("opennebula", "--for", "watchdog") == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "only their owner can end" in told.err
