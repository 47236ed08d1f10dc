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


ENROLS = """
cluster: {name: c, uuid: 5a3d1c52-5a1e-4d0c-8f0e-3c1b6f9d2e47}
clouds:
  - name: google
    provider: gcp
    location: public
    project: my-project
    region: us-central1
    zones: [us-central1-a]
    image: img
    types: {n2-standard-2: {cpus: 2, memory: 4000, price: 0.1}}
  - name: stack
    provider: openstack
    location: on-premises
    cloud: check
    image: check
    types: {check: {cpus: 1, memory: 768}}
pools:
  - {name: gc, cloud: google, nodes: "gc[1-4]", instance_types: [n2-standard-2], cpus: 2, memory: 2000}
  - {name: os, cloud: stack, nodes: "os[1-4]", instance_types: [check], cpus: 1, memory: 500}
join:
  head: 10.99.0.1
  network: {endpoint: "vpn.example.org:51820"%s}
"""
CONSOLES = {"gcp": "getSerialPortOutput", "openstack": "/servers/*/action"}


@pytest.mark.parametrize("kind", CONSOLES)
@pytest.mark.parametrize(
    ("more", "reads"), [("", True), (", enrol: console", True), (", enrol: once", False)]
)
def test_a_tunnel_whose_machines_enrol_by_console_needs_the_right_to_read_it(
    kind: str, more: str, *, reads: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """Else no machine enrols: each is paid until its boot counts as failed."""
    config = tmp_path / "site.yaml"
    config.write_text(ENROLS % more)
    assert render(kind, config=config) == 0
    assert (CONSOLES[kind] in capsys.readouterr().out) == reads


def test_a_tunnel_of_another_cloud_gives_no_right_to_read_consoles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "site.yaml"
    config.write_text(ENROLS % ", clouds: [stack]")
    assert render("gcp", config=config) == 0
    assert CONSOLES["gcp"] not in capsys.readouterr().out


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
