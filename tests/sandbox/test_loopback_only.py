"""A rehearsal reaches no real cloud and knows no real credentials."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from emulated import running_ec2
from msgspec import field
from msgspec.structs import replace
from patience import patience

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.config.clouds import CloudSettings, InstanceType
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.providers.libvirt.settings import LibvirtCloud, LibvirtHost, LibvirtType
from slurm_elastic.providers.opennebula.settings import OneTemplate, OpenNebulaCloud
from slurm_elastic.providers.openstack.settings import Flavor, OpenStackCloud
from slurm_elastic.providers.redfish.settings import RedfishCloud
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.loopback_only import (
    EMULATOR_KEY,
    isolated_env,
    require_emulated,
    require_loopback,
)
from slurm_elastic.sandbox.nebula.control import OneControl
from slurm_elastic.testing.contract import UUID

REAL = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS_SESSION_TOKEN": "IQoJb3JpZ2luX2VjEXAMPLE",
    "AWS_PROFILE": "production",
    "AWS_ENDPOINT_URL_EC2": "https://ec2.us-east-1.amazonaws.com",
    "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/real",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere/token",
    "AWS_CA_BUNDLE": "/nowhere/ca",
    "OS_AUTH_URL": "https://keystone.example.org:5000/v3",
    "OS_PASSWORD": "secret",
    "ONE_AUTH": "/root/.one/one_auth",
    "ONE_XMLRPC": "https://one.example.org/RPC2",
    "DOCKER_HOST": "tcp://docker.example.org:2375",
    "GOOGLE_APPLICATION_CREDENTIALS": "/root/.config/gcloud/key.json",
    "CLOUDSDK_CONFIG": "/root/.config/gcloud-site",
    "GCE_METADATA_HOST": "metadata.example.org",
    "AZURE_CLIENT_SECRET": "azure-secret",
    "ARM_CLIENT_SECRET": "arm-secret",
    "IDENTITY_ENDPOINT": "http://identity.example.org/token",
    "LIBVIRT_DEFAULT_URI": "qemu+ssh://kvm.example.org/system",
    "HTTPS_PROXY": "http://proxy.example.org:3128",
    "http_proxy": "http://proxy.example.org:3128",
}


@pytest.fixture
def guarded() -> Iterator[list[object]]:
    """Connections that were tried while the test ran, as (host, port)."""
    tried: list[object] = []
    watching = True

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event in ("socket.connect", "socket.getaddrinfo"):
            tried.append(arguments[1] if event == "socket.connect" else arguments[0])

    sys.addaudithook(audit)
    yield tried
    watching = False


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:5000",
        "https://127.3.2.1",
        "http://localhost:1/",
        "http://[::1]:80",
    ],
)
def test_loopback_is_let_through(url: str) -> None:
    assert require_loopback(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "https://ec2.us-east-1.amazonaws.com",
        "http://127.0.0.1@ec2.us-east-1.amazonaws.com",
        "http://127.0.0.1.example.org",
        "http://localhost.example.org:5000",
        "http://10.0.0.1:5000",
        "http://0.0.0.0:5000",
        "http://2130706433:5000",
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:10.0.0.1]:80",
        "http://[::1",
        "http://127.0.0.1:99999",
        "file:///etc/passwd",
        "127.0.0.1:5000",
        "",
    ],
)
def test_everything_else_is_refused_before_any_connection(url: str, guarded: list[object]) -> None:
    with pytest.raises(SandboxError, match="endpoint"):
        require_loopback(url)
    with pytest.raises(SandboxError, match="endpoint"):
        Ec2Control(url)
    assert guarded == []


def cloud(**more: object) -> AwsCloud:
    values: dict[str, object] = {"endpoint": "http://127.0.0.1:5000"}
    return AwsCloud(
        name="public",
        location=Location.PUBLIC,
        region="us-east-1",
        image="ami-1",
        types={"t": InstanceType(cpus=1, memory=1, price=1.0)},
        **(values | more),
    )


def test_clouds_of_a_rehearsal_must_be_emulated(guarded: list[object]) -> None:
    require_emulated([cloud(), FakeCloud(name="f", location=Location.PUBLIC)])
    with pytest.raises(SandboxError, match="'public' names no endpoint"):
        require_emulated([cloud(endpoint=None)])
    with pytest.raises(SandboxError, match="not on this host's loopback"):
        require_emulated([cloud(endpoint="https://ec2.us-east-1.amazonaws.com")])
    with pytest.raises(SandboxError, match="'public' names a profile"):
        require_emulated([cloud(profile="production")])
    assert guarded == []


def test_an_opennebula_elsewhere_is_refused(guarded: list[object]) -> None:
    def nebula(endpoint: str) -> OpenNebulaCloud:
        kind = OneTemplate(cpus=1, memory=1, template=0)
        place = Location.ON_PREMISES
        return OpenNebulaCloud(name="n", location=place, endpoint=endpoint, types={"t": kind})

    require_emulated([nebula("http://127.0.0.1:2633/RPC2")])
    with pytest.raises(SandboxError, match="not on this host's loopback"):
        require_emulated([nebula("http://front-end:2633/RPC2")])
    with pytest.raises(SandboxError, match="endpoint"):
        OneControl("http://10.0.0.1:2633")
    assert guarded == []


def test_an_openstack_elsewhere_is_refused(tmp_path: Path, guarded: list[object]) -> None:
    file = tmp_path / "clouds.yaml"
    cloud = OpenStackCloud(
        name="s", location=Location.ON_PREMISES, cloud="hpc", image="i", clouds_file=str(file),
        types={"t": Flavor(cpus=1, memory=1)},
    )  # fmt: skip
    file.write_text("clouds: {hpc: {auth: {auth_url: 'http://127.0.0.1:5000/v3'}}}")
    require_emulated([cloud])
    file.write_text("clouds: {hpc: {auth: {auth_url: 'https://keystone.example.org/v3'}}}")
    with pytest.raises(SandboxError, match="not on this host's loopback"):
        require_emulated([cloud])
    file.write_text("clouds: {other: {}}")
    with pytest.raises(SandboxError, match="has no auth_url for its cloud 'hpc'"):
        require_emulated([cloud])
    with pytest.raises(SandboxError, match="names no clouds_file"):
        require_emulated([replace(cloud, clouds_file=None)])
    assert guarded == []


def test_prices_of_azure_elsewhere_are_refused(guarded: list[object]) -> None:
    here = "http://127.0.0.1:1"
    azure = AzureCloud(
        name="a", location=Location.PUBLIC, subscription="s", resource_group="g", region="r",
        image="i", subnet="n", ssh_public_key="k", credentials="/login.yaml", endpoint=here,
        login_endpoint=here,
    )  # fmt: skip
    require_emulated([azure, replace(azure, price_endpoint=here)])
    with pytest.raises(SandboxError, match="not on this host's loopback"):
        require_emulated([replace(azure, price_endpoint="https://prices.azure.com")])
    assert guarded == []


class MistCloud(CloudSettings, frozen=True, kw_only=True, tag="mist"):
    """The settings of a cloud of an outside package."""

    endpoint: str | None = None
    regions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:5000", "http://localhost:1/v2"])
def test_a_cloud_of_an_outside_package_may_be_on_loopback(endpoint: str) -> None:
    mist = MistCloud(name="m", location=Location.PUBLIC, endpoint=endpoint)
    require_emulated([mist, replace(mist, regions={"a": {"token_url": endpoint}})])


@pytest.mark.parametrize(
    "settings",
    [
        {"endpoint": "https://compute.googleapis.com"},
        {"endpoint": "compute.googleapis.com"},
        {"endpoint": None},
        {"endpoint": "http://127.0.0.1:1", "regions": {"a": {"x": "https://mist.example.org"}}},
        {"endpoint": "http://127.0.0.1:1", "regions": {"a": {"auth_host": "mist.example.org"}}},
    ],
)
def test_a_cloud_of_an_outside_package_elsewhere_is_refused(
    settings: dict[str, Any], guarded: list[object]
) -> None:
    with pytest.raises(SandboxError, match="endpoint"):
        require_emulated([MistCloud(name="m", location=Location.PUBLIC, **settings)])
    assert guarded == []


@pytest.mark.parametrize(
    ("uri", "here"),
    [
        ("qemu:///system", True),
        ("qemu+ssh://localhost/system", True),
        ("qemu+ssh://root@kvm1.example.org/system", False),
        ("qemu+tls://10.0.0.1/system", False),
    ],
)
def test_a_hypervisor_elsewhere_is_refused(uri: str, here: bool, guarded: list[object]) -> None:
    kinds = {"t": LibvirtType(cpus=1, memory=1)}
    cloud = LibvirtCloud(
        name="l", location=Location.ON_PREMISES, hosts={"h": LibvirtHost(uri=uri)}, types=kinds,
        image="i", storage_pool="s",
    )  # fmt: skip
    with nullcontext() if here else pytest.raises(SandboxError, match="not on this host's"):
        require_emulated([cloud])
    assert guarded == []


def test_hosts_whose_power_is_switched_elsewhere_are_refused(guarded: list[object]) -> None:
    def rack(url: str, **more: Any) -> RedfishCloud:
        kinds = {"t": InstanceType(cpus=1, memory=1, price=0.0)}
        place = Location.ON_PREMISES
        return RedfishCloud(name="r", location=place, hosts={"h": url}, types=kinds, **more)

    require_emulated([rack("http://127.0.0.1:8000/redfish/v1/Systems/1")])
    with pytest.raises(SandboxError, match="not on this host's loopback"):
        require_emulated([rack("https://bmc1.example.org/redfish/v1/Systems/1")])
    with pytest.raises(SandboxError, match="'r' switches its hosts by a command"):
        require_emulated([rack("pdu-7", command=("/usr/local/bin/pdu",))])
    assert guarded == []


def test_nothing_of_the_callers_clouds_is_left_in_the_environment() -> None:
    env = isolated_env(REAL | {"PATH": "/bin", "LANG": "C", "OSTYPE": "linux"})
    assert not set(REAL.values()) & set(env.values())
    assert (env["PATH"], env["LANG"], env["OSTYPE"]) == ("/bin", "C", "linux")
    assert env["AWS_ACCESS_KEY_ID"] == EMULATOR_KEY
    assert env["AWS_EC2_METADATA_DISABLED"] == "true"
    assert not {n for n in env if n.lower().endswith("_proxy")} - {"NO_PROXY", "no_proxy"}


ASK = """
import json, os, sys
from slurm_elastic.sandbox.loopback_only import isolated_env
kept = isolated_env(os.environ)
os.environ.clear()
os.environ.update(kept)
import msgspec
from slurm_elastic.config import Cluster
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers import open_provider
settings = msgspec.json.decode(sys.stdin.buffer.read(), type=AwsCloud)
provider = open_provider(settings, Cluster(name="c", uuid=sys.argv[1]))
provider.check()
provider.instances()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory with real-looking credentials in every place that boto3 looks at."""
    aws = tmp_path / "home" / ".aws"
    aws.mkdir(parents=True)
    key, secret = "AKIAI44QH8DHBEXAMPLE", "je7MtGbClwBF/2Zp9Utk/h3yCo8nvbEXAMPLEKEY"
    text = f"aws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
    (aws / "credentials").write_text(f"[default]\n{text}[production]\n{text}")
    (aws / "config").write_text(f"[default]\nregion = eu-west-1\n{text}")
    (aws.parent / ".boto").write_text(f"[Credentials]\n{text}")
    return aws.parent


def test_no_request_carries_the_callers_credentials(tmp_path: Path, home: Path) -> None:
    with running_ec2(tmp_path) as control:
        settings = json.dumps(
            {
                "provider": "aws",
                "name": "public",
                "location": "public",
                "region": "us-east-1",
                "image": "ami-1",
                "endpoint": control.url,
                "types": {"t": {"cpus": 1, "memory": 1, "price": 1.0}},
            }
        )
        subprocess.run(
            [sys.executable, "-c", ASK, UUID],
            input=settings.encode(),
            env={**os.environ, **REAL, "HOME": str(home)},
            check=True,
            timeout=patience(120),
        )
        assert control.state().access_keys == (EMULATOR_KEY,)


def test_no_byte_of_the_callers_credentials_is_sent(home: Path) -> None:
    """The whole of what goes over the wire, read by a server that only listens."""
    got: list[bytes] = []

    def listen(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.settimeout(60)
            got.append(connection.recv(65536))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=listen, args=(server,), daemon=True)
        thread.start()
        settings = json.dumps(
            {
                "provider": "aws",
                "name": "public",
                "location": "public",
                "region": "us-east-1",
                "image": "ami-1",
                "endpoint": f"http://127.0.0.1:{server.getsockname()[1]}",
                "api_timeout": 3,
                "types": {"t": {"cpus": 1, "memory": 1, "price": 1.0}},
            }
        )
        subprocess.run(
            [sys.executable, "-c", ASK, UUID],
            input=settings.encode(),
            env={**os.environ, **REAL, "HOME": str(home)},
            check=False,
            capture_output=True,
            timeout=patience(120),
        )
        thread.join(patience(10))
    sent = b"".join(got).decode()
    assert f"Credential={EMULATOR_KEY}/" in sent
    for secret in ("AKIA", "EXAMPLE", "Token:", "production"):
        assert secret not in sent
