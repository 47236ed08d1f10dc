"""``init --cloud``: a skeleton without account, image or credentials, and what its to-dos keep from happening."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest
import yaml
from needs import unless

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.main import main
from slurm_elastic.config import blocked_clouds, configfile
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.setup.skeleton import kinds_with_skeleton
from tests.cli.test_init import Host, _no_slurmctld, conf_check, host

pytestmark = unless("slurmctld")
__all__ = ["_no_slurmctld", "conf_check", "host"]
KINDS = ("aws", "azure", "docker", "gcp", "libvirt", "opennebula", "openstack", "redfish")
VALUES = {
    "region": "eu-central-1", "image": "ami-0123456789abcdef0", "image_bucket": "bucket",
    "network": "slurm", "networks": "net", "cloud": "hpc", "endpoint": "http://front-end:2633/RPC2",
    "r1": "https://r1-bmc/redfish/v1/Systems/1",
}  # fmt: skip
AZURE_VALUES = {
    "subscription": "00000000-0000-0000-0000-000000000001", "resource_group": "machines",
    "region": "westeurope", "image": "debian:debian-12:12-gen2:latest",
    "subnet": "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/v/subnets/n",
    "ssh_public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBnf6dmvPAJGGEPMrsyQcEHNwzp4XYxwCYp5nJwyCG1l",
}  # fmt: skip
GCP_VALUES = {
    "project": "my-project", "region": "us-central1", "zones": "us-central1-a",
    "image": "family/slurm-node", "subnetwork": "hpc",
}  # fmt: skip
"""By key, what somebody fetches with the commands of the to-dos."""


@pytest.fixture(autouse=True)
def _nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_elastic.providers.libvirt.found.SOCKETS", ())


def skeleton(host: Host, kind: str, *words: str) -> int:
    return host.init(host.root / "etc" / "slurm.conf", "--yes", "--cloud", kind, *words)


def steps(text: str) -> list[str]:
    """The to-dos that a command printed, without the file's name."""
    return re.findall(r"slurm-elastic\.yaml:(\d+: .*to do: .*)", text)


def filled(path: Path) -> None:
    """The skeleton with all values, as a person completes it."""
    text, lines = path.read_text(), []
    azure = AZURE_VALUES if "provider: azure" in text else {}
    values = VALUES | azure | (GCP_VALUES if "provider: gcp" in text else {})
    for line in text.splitlines():
        key = re.findall(r"(\w+): \[?TODO", line)
        lines.append(
            re.sub(r"(?<=[ \[])TODO(?=[ \]}])", values[key[0]], line, count=1) if key else line
        )
    path.write_text("\n".join((*lines, "")))


def test_each_cloud_that_can_be_configured_has_a_skeleton() -> None:
    assert kinds_with_skeleton(table()) == KINDS


@pytest.mark.usefixtures("conf_check")
@pytest.mark.parametrize("kind", KINDS)
def test_a_skeleton_names_its_steps_and_conf_check_lists_the_same(
    kind: str, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    host.site("fresh")
    assert skeleton(host, kind) == 0
    announced = steps(capsys.readouterr().out)
    assert len(announced) >= 3
    assert all("slurm-elastic " in s or ": " in s for s in announced)
    assert any("slurm-elastic image build" in s for s in announced) == (kind != "redfish")
    (cloud,) = yaml.safe_load(host.yaml.read_text())["clouds"]
    assert cloud["provider"] == kind
    assert host.yaml.read_text().count("# TODO") == len(announced)

    assert host.run("conf", "check") == 2
    told = capsys.readouterr()
    assert steps(told.err) == announced
    assert "Traceback" not in told.err

    filled(host.yaml)
    assert "TODO " not in re.sub(r"#.*", "", host.yaml.read_text())
    assert host.run("conf", "check") == 0, capsys.readouterr().err


def test_a_head_on_loopback_is_a_step(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Debian gives the head's own name 127.0.1.1."""
    real = socket.getaddrinfo

    def resolved(name: str, *arguments: object, **keywords: object) -> object:
        address = "127.0.1.1" if name == "workstation" else name
        return real(address, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr("socket.getaddrinfo", resolved)
    host.site("fresh")
    assert skeleton(host, "aws") == 0
    text = host.yaml.read_text()
    assert "\njoin:" not in text
    words = "TODO join.head: workstation is 127.0.1.1 on this host, and no machine reaches"
    assert f"# {words} 127.0.1.1." in text
    assert words in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("kind", ["aws", "openstack"])
def test_a_step_names_the_port_of_slurm_conf(kind: str, host: Host) -> None:
    conf = host.site("fresh")
    conf.write_text(f"{conf.read_text()}SlurmctldPort=7000-7003\n")
    assert skeleton(host, kind) == 0
    assert "machines the head at 7000-7003: " in host.yaml.read_text()


def test_a_cloud_with_to_dos_is_not_in_use_and_the_services_read_the_file(
    host: Host,
) -> None:
    host.site("fresh")
    skeleton(host, "opennebula")
    config = configfile.load(host.yaml)  # as the services do
    assert blocked_clouds(config)["nebula"].words.endswith("still have to-dos: endpoint")
    filled(host.yaml)
    assert blocked_clouds(configfile.load(host.yaml)) == {}


def test_a_number_that_is_to_do_is_a_step_for_the_services_too(host: Host) -> None:
    host.site("fresh")
    skeleton(host, "docker")
    host.yaml.write_text(host.yaml.read_text().replace("    cpus: 16", "    cpus: TODO"))
    with pytest.raises(ConfigError, match=r"pools\[0\] \(boxes\).cpus: to do"):
        configfile.load(host.yaml)


def test_a_to_do_of_a_site_in_a_comment_is_none_of_ours(host: Host) -> None:
    host.site("fresh")
    skeleton(host, "docker")
    filled(host.yaml)
    assert "# TODO" in host.yaml.read_text()
    assert configfile.load(host.yaml, whole=True).clouds[0].name == "boxes"


def test_a_second_cloud_is_added_and_the_first_stays_in_use(host: Host) -> None:
    host.site("fresh")
    skeleton(host, "docker")
    filled(host.yaml)
    before = host.yaml.read_text()
    assert skeleton(host, "openstack") == 0
    assert set(before.splitlines()) <= set(host.yaml.read_text().splitlines())
    config = configfile.load(host.yaml)
    assert [cloud.name for cloud in config.clouds] == ["boxes", "stack"]
    assert list(blocked_clouds(config)) == ["stack"]


def test_what_is_found_is_no_to_do(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials and a region, but no answer of EC2."""
    host.site("fresh")
    for name, value in (("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "y"), ("DEFAULT_REGION", "eu-west-3"),
                        ("ENDPOINT_URL", "http://127.0.0.1:9")):  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr("slurm_elastic.providers.aws.found.TIMEOUT_S", 1.0)
    assert skeleton(host, "aws") == 0
    (cloud,) = yaml.safe_load(host.yaml.read_text())["clouds"]
    assert (cloud["region"], cloud["image"]) == ("eu-west-3", "TODO")


def test_hosts_with_bmcs_get_a_skeleton_although_their_account_is_found(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.site("fresh")
    account = host.root / "bmc.json"
    account.write_text("{}")
    host.for_the_services(account)
    monkeypatch.setattr("slurm_elastic.providers.redfish.found.CREDENTIALS", account)
    assert skeleton(host, "redfish") == 0
    (cloud,) = yaml.safe_load(host.yaml.read_text())["clouds"]
    assert (cloud["credentials_file"], cloud["hosts"]) == (str(account), {"r1": "TODO"})


def test_a_second_cloud_in_one_command_is_refused(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    host.site("small")
    with pytest.raises(SystemExit) as ended:
        skeleton(host, "openstack", "--cloud", "aws")
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "--cloud: found openstack and aws, expected one cloud; run init again" in error
    assert not host.yaml.exists()


def test_an_unknown_kind_names_those_that_are_known(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    host.site("fresh")
    assert skeleton(host, "nimbus") == 2
    assert "expected one of aws, azure" in capsys.readouterr().err
    assert not host.yaml.exists()


def test_in_a_sandboxs_shell_init_says_so(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    from slurm_elastic.sandbox.layout import Layout

    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "etc" / "slurm.conf"))
    main(["init", "--output", str(host.yaml), "--yes", "--slurm-conf", str(host.site("fresh"))])
    assert "the sandbox" not in capsys.readouterr().out
    Layout(dir=tmp_path).marker.touch()
    os.remove(host.yaml)
    main(
        [
            "init",
            "--output",
            str(host.yaml),
            "--yes",
            "--slurm-conf",
            str(host.root / "etc" / "slurm.conf"),
        ]
    )
    assert f"the shell of the sandbox in {tmp_path}" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["aws", "openstack"])
def test_the_steps_name_the_sites_own_ports(host: Host, kind: str) -> None:
    conf = host.site("small")
    lines = [x for x in conf.read_text().splitlines() if "port" not in x.lower()]
    conf.write_text("\n".join([*lines, "SlurmctldPort=7100", "SlurmdPort=7200", ""]))
    assert host.init(conf, "--yes", "--cloud", kind) == 0
    step = next(line for line in host.yaml.read_text().splitlines() if "reach machines" in line)
    assert "at port 7200, and machines the head at 7100" in step
