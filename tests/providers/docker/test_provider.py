"""Docker's behaviour: refusals, names, room, several hosts, credentials, time-outs.

An engine that only answers what a test says; the contract runs on a real one (tests/realcloud).
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from docker_proxy import PING_VERSION, EngineProxy, Fault, running_proxy
from msgspec.structs import replace
from patience import awake, stretched

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    SandboxError,
    TransientError,
)
from slurm_elastic.config import Cluster, Config, PoolSettings
from slurm_elastic.model.cluster import InstanceState, LaunchSpec, Location, Market, Offer, Pool
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.model.protocols import list_tidily
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.docker import requests as request
from slurm_elastic.providers.docker.errors import classify, translated
from slurm_elastic.providers.docker.provider import LISTING_LAG_S, DockerProvider
from slurm_elastic.providers.docker.settings import DockerCloud, DockerHost, DockerType
from slurm_elastic.sandbox.loopback_only import require_emulated
from slurm_elastic.testing.contract import OTHER_UUID, UUID

pytestmark = pytest.mark.usefixtures("guarded")

NAME = "boxes"
SMALL = DockerType(cpus=2, memory=1024, price=0.02)
POOL = Pool(
    name="box", cloud=NAME, nodes=("bx1", "bx2", "bx3"), cpus=2, real_memory=1000,
    instance_types=("small",), markets=(Market.RESERVED,),
)  # fmt: skip


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[EngineProxy]:
    with running_proxy(tmp_path / "engine.sock", None) as running:
        yield running


def settings(*urls: str, **more: Any) -> DockerCloud:
    values: dict[str, Any] = {
        "hosts": {f"h{n}": DockerHost(url=url, cpus=8, memory=8192) for n, url in enumerate(urls)},
        "image": "node:1",
        "network": "slurm",
        "types": {"small": SMALL},
        "api_timeout": 20.0,
    }
    return DockerCloud(name=NAME, location=Location.ON_PREMISES, **(values | more))


def opened(*urls: str, **more: Any) -> DockerProvider:
    provider = open_provider(settings(*urls, **more), Cluster(name="site", uuid=UUID))
    assert isinstance(provider, DockerProvider)
    return provider


def spec(*nodes: str, zone: str = "h0", generation: str = "g1") -> LaunchSpec:
    offer = Offer(
        cloud=NAME, location=Location.ON_PREMISES, instance_type="small", zone=zone,
        market=Market.RESERVED, price=0.02, cpus=2, memory=1024,
    )  # fmt: skip
    return LaunchSpec(generation=generation, pool=POOL, nodes=nodes, offer=offer, jobs=(7,))


def number_of(machine: int) -> str:
    """An id as engines give them; the first twelve digits tell machines apart."""
    return f"{machine:012x}".ljust(64, "f")


def row(number: int, state: str = "running", **labels: str) -> dict[str, Any]:
    """A line of the engine's list: a machine of ours, unless the labels say otherwise."""
    ours = {
        "cluster": UUID, "cloud": NAME, "pool": "box", "node": "bx1", "generation": "g1",
        "type": "small", "market": "reserved", "cpus": "2", "memory": "1024", "price": "0.02",
    }  # fmt: skip
    address = {"Networks": {"slurm": {"IPAddress": f"10.0.0.{number}"}}}
    return {
        "Id": number_of(number), "State": state, "Created": 1000 + number,
        "Labels": {f"slurm-elastic.{k}": v for k, v in (ours | labels).items()},
        "NetworkSettings": address,
    }  # fmt: skip


def listing(*rows: dict[str, Any]) -> Fault:
    return Fault(status=200, body=json.dumps(rows).encode(), match="^GET .*/containers/json")


def answer(match: str, status: int, value: object = None, times: int | None = None) -> Fault:
    return Fault(status=status, body=json.dumps(value).encode(), match=match, times=times)


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "message", "kind", "code"),
        [
            (500, "mkdir /x: no space left on device", CapacityError, "NoSpace"),
            (500, "write /x: disk quota exceeded", QuotaError, "DiskQuota"),
            (500, "could not find an available, non-overlapping IPv4 address", CapacityError, "NoAddress"),
            (403, "no available IPv4 addresses on this network's address pools: slurm", CapacityError, "NoAddress"),
            (500, "fork/exec /proc/self/exe: cannot allocate memory", CapacityError, "NoMemory"),
            (403, "authorization denied by plugin opa: read only", AuthError, "Denied"),
            (401, "who are you", AuthError, "HTTP401"),
            (400, "Client sent an HTTP request to an HTTPS server.", AuthError, "NoCertificate"),
            (404, "No such image: node:1", ProviderError, "NoImage"),
            (404, "network slurm not found", ProviderError, "NoNetwork"),
            (404, "No such container: 12ab", InstanceNotFound, "NoContainer"),
            (404, "page not found", ProviderError, "HTTP404"),
            (400, "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available", ProviderError, "HTTP400"),
            (400, "OCI runtime create failed: exec: slurmd: not found", ProviderError, "Runtime"),
            (429, "slow down", TransientError, "HTTP429"),
            (500, "something else", TransientError, "HTTP500"),
            (503, "server is shutting down", TransientError, "HTTP503"),
            (None, "nothing", TransientError, "NoStatus"),
        ],
    )  # fmt: skip
    def test_a_sentence_is_one_of_the_five(
        self, status: int | None, message: str, kind: type[ProviderError], code: str
    ) -> None:
        assert classify(status, message) == (kind, code)

    def test_it_names_the_host_and_the_engines_words(self, proxy: EngineProxy) -> None:
        proxy.fail(listing(), Fault(status=404, message="No such image: node:1", match="create"))
        with pytest.raises(ProviderError) as caught:
            opened(proxy.url).launch(spec("bx1"))
        assert str(caught.value) == "boxes: NoImage: h0: No such image: node:1"

    @pytest.mark.parametrize(
        ("said", "why"),
        [
            ("[SSL: SSLV3_ALERT_BAD_CERTIFICATE] sslv3 alert bad certificate", "bad certificate"),
            ("[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] ssl/tls alert certificate expired", "certificate expired"),
            ("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca", "unknown ca"),
            ("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required", "certificate required"),
        ],
    )  # fmt: skip
    def test_what_a_server_says_of_our_certificate(self, said: str, why: str) -> None:
        wrapped = requests.exceptions.SSLError(ssl.SSLError(1, said))
        refused = pytest.raises(AuthError, match=rf"refuses our certificate \({why}\)")
        with refused, translated(NAME, "h0"):
            raise wrapped

    @pytest.mark.parametrize("said", ["[SSL] tlsv1 alert internal error", "EOF occurred"])
    def test_another_failure_of_tls_may_pass(self, said: str) -> None:
        with pytest.raises(TransientError), translated(NAME, "h0"):
            raise ssl.SSLError(1, said)

    def test_what_is_unknown_stays_unknown(self) -> None:
        with pytest.raises(ZeroDivisionError), translated(NAME, "h0"):
            _ = 1 / 0

    @pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'[{"Id": "1"}]', b"[null]"])
    def test_an_answer_that_makes_no_sense_is_transient(
        self, proxy: EngineProxy, body: bytes
    ) -> None:
        proxy.fail(Fault(status=200, body=body or b" ", match="containers/json"))
        with pytest.raises(TransientError):
            list_tidily(opened(proxy.url))


class TestLaunching:
    def test_a_container_has_limits_labels_and_no_privileges(self) -> None:
        machine = request.ContainerToBe(
            settings=settings(
                "unix:///x", mounts=("/k:/etc/k:ro",), tmpfs=("/run",), environment={"TZ": "UTC"},
                capabilities=("SYS_PTRACE",), security_options=("seccomp=unconfined",),
            ),
            cluster=Cluster(name="site", uuid=UUID), node="bx1", kind=SMALL,
            spec=replace(spec("bx1"), owner={"user": "ann"}), head="head:6817",
        )  # fmt: skip
        assert machine.limits == {
            "nano_cpus": 2 * 10**9, "mem_limit": 1 << 30, "memswap_limit": 1 << 30, "init": True,
            "network_mode": "slurm", "binds": ["/k:/etc/k:ro"], "tmpfs": {"/run": ""},
            "cap_add": ["SYS_PTRACE"], "security_opt": ["seccomp=unconfined"],
            "restart_policy": {"Name": "no"},
        }  # fmt: skip
        assert machine.environment == {
            "SLURM_ELASTIC_NODE": "bx1", "SLURM_ELASTIC_CLUSTER": "site",
            "SLURM_ELASTIC_GENERATION": "g1", "SLURM_ELASTIC_HEAD": "head:6817", "TZ": "UTC",
        }  # fmt: skip
        assert machine.labels["slurm-elastic.jobs"] == "7"
        assert machine.labels["slurm-elastic.user"] == "ann"
        assert machine.labels["slurm-elastic.cluster"] == UUID

    def test_names_are_of_the_launch_and_fit_an_engine(self) -> None:
        def name(uuid: str = UUID, cluster: str = "site", generation: str = "g1") -> str:
            return request.ContainerToBe(
                settings=settings("unix:///x"), cluster=Cluster(name=cluster, uuid=uuid),
                spec=spec("bx1", generation=generation), node="bx1", kind=SMALL,
            ).name  # fmt: skip

        assert name() == name()
        assert len({name(), name(uuid=OTHER_UUID), name(generation="g2")}) == 3
        odd = name(cluster="-ä b" + "x" * 200)
        assert len(odd) < 128
        assert odd[0].isalnum()
        assert odd.isascii()

    def test_one_that_was_carried_out_late_is_met_by_its_name(self, proxy: EngineProxy) -> None:
        labels = row(1)["Labels"]
        there = {"Id": number_of(1), "Config": {"Labels": labels}, "State": {"Status": "created"}}
        proxy.fail(
            answer("^GET .*/containers/json", 200, [], times=1),
            Fault(status=409, message='The container name "/x" is already in use', match="create"),
            answer("^GET .*/containers/site-bx1-[0-9a-f]+/json", 200, there),
            answer("start$", 204),
            listing(row(1)),
        )
        (machine,) = opened(proxy.url).launch(spec("bx1"))
        assert (machine.id, machine.address) == (number_of(1)[:12], "10.0.0.1")
        assert proxy.count("create") == 1

    def test_whether_a_taken_name_is_ours_may_be_in_doubt(self, proxy: EngineProxy) -> None:
        proxy.fail(
            listing(),
            Fault(status=409, message="The name /x is already in use", match="create"),
            Fault(drop=True, match="^GET .*/json$"),
        )
        with pytest.raises(TransientError):
            opened(proxy.url).launch(spec("bx1"))

    @pytest.mark.parametrize(
        "change", [None, {"cluster": OTHER_UUID}, {"generation": "g2"}, {"node": "bx2"}]
    )
    def test_a_name_that_is_somebody_elses_is_a_refusal(
        self, proxy: EngineProxy, change: dict[str, str] | None
    ) -> None:
        labels = None if change is None else row(1, **change)["Labels"]
        there = {"Id": number_of(1), "Config": {"Labels": labels}, "State": {"Status": "running"}}
        proxy.fail(
            Fault(status=409, message='The container name "/x" is already in use', match="create"),
            answer("^GET .*/containers/site-bx1-[0-9a-f]+/json", 200, there),
        )
        with pytest.raises(ProviderError) as caught:
            opened(proxy.url).launch(spec("bx1"))
        assert caught.value.code == "NameTaken"
        assert proxy.count("start$") == 0

    def test_one_that_cannot_be_started_is_removed(self, proxy: EngineProxy) -> None:
        proxy.fail(
            answer("create", 201, {"Id": number_of(1)}),
            Fault(status=404, message="network slurm not found", match="start$"),
            answer("^DELETE", 204),
        )
        with pytest.raises(ProviderError) as caught:
            opened(proxy.url).launch(spec("bx1"))
        assert caught.value.code == "NoNetwork"
        assert proxy.count("^DELETE") == 1
        assert proxy.count("^DELETE .*force=True") == proxy.count("^DELETE .*v=True") == 1

    def test_one_whose_start_is_in_doubt_is_left_and_looked_for(self, proxy: EngineProxy) -> None:
        proxy.fail(
            answer("create", 201, {"Id": number_of(1)}),
            Fault(status=500, message="context deadline exceeded", match="start$"),
        )
        with pytest.raises(TransientError):
            opened(proxy.url).launch(spec("bx1"))
        assert proxy.count("^DELETE") == 0


class TestRoom:
    def test_what_runs_takes_room_whoever_owns_it(self, proxy: EngineProxy) -> None:
        proxy.fail(listing(row(1), row(2, cluster=OTHER_UUID), row(3, "exited"), row(4, "created")))
        (offer,) = opened(proxy.url).offers(POOL)
        assert (offer.free, offer.free_reason) == (1, "6 of 8 cpus are given out")
        assert (offer.zone, offer.price, offer.instance_type) == ("h0", 0.02, "small")

    @pytest.mark.parametrize(
        ("own", "free", "why"),
        [
            ({}, 3, "0 of 3500 MiB are given out"),
            ({"cpus": 4}, 2, "0 of 4 cpus are given out"),
            ({"memory": 1500}, 1, "0 of 1500 MiB are given out"),
        ],
    )
    def test_what_is_not_set_is_asked_for(
        self, proxy: EngineProxy, own: dict[str, int], free: int, why: str
    ) -> None:
        proxy.fail(answer("/info", 200, {"NCPU": 64, "MemTotal": 3500 << 20}))
        (offer,) = opened(hosts={"h0": DockerHost(url=proxy.url, **own)}).offers(POOL)
        assert (offer.free, offer.free_reason) == (free, why)


class TestHosts:
    @pytest.fixture
    def two(self, tmp_path: Path) -> Iterator[tuple[EngineProxy, EngineProxy]]:
        with ExitStack() as stack:
            first, second = (
                stack.enter_context(running_proxy(tmp_path / f"{n}.sock", None)) for n in "ab"
            )
            yield first, second

    def test_what_one_printed_is_looked_for_where_it_is(
        self, two: tuple[EngineProxy, EngineProxy]
    ) -> None:
        two[0].fail(listing(row(1)), Fault(status=200, body=b"booted\n", match="^GET .*/logs"))
        two[1].fail(listing())
        provider = opened(two[0].url, two[1].url)
        assert provider.console(number_of(2)[:12]) == "", "there is no such machine of ours"
        two[1].fail(Fault(drop=True))
        with pytest.raises(TransientError):  # it may be there
            provider.console(number_of(2)[:12])
        assert (two[0].count("/logs"), two[1].count("/logs")) == (0, 0)


class TestEnding:
    def test_one_that_is_gone_has_been_ended(
        self, proxy: EngineProxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        gone = Fault(status=404, message="No such container: x", match="kill")
        proxy.fail(listing(row(1)), gone)
        provider = opened(proxy.url)
        provider.terminate([number_of(1)[:12]])
        assert proxy.count("kill") == 1
        assert f"already gone cloud=boxes id={number_of(1)[:12]}" in caplog.text

    def test_one_that_is_gone_when_it_is_looked_at_is_not_removed(self, proxy: EngineProxy) -> None:
        proxy.fail(
            listing(row(1)),
            Fault(status=409, message="Container x is not running", match="kill"),
            Fault(status=404, message="No such container: x", match="^GET .*/json$"),
        )
        provider = opened(proxy.url)
        provider.terminate([number_of(1)[:12]])
        assert proxy.count("^DELETE") == 0

    def test_one_that_has_ended_by_itself_is_kept(self, proxy: EngineProxy) -> None:
        proxy.fail(
            listing(row(1)),
            Fault(status=409, message="Container x is not running", match="kill"),
            answer("^GET .*/json$", 200, {"State": {"Status": "exited"}}),
        )
        provider = opened(proxy.url)
        provider.terminate([number_of(1)[:12]])
        assert proxy.count("^DELETE") == 0, "its log says why it went"

    def test_one_that_never_started_is_removed(self, proxy: EngineProxy) -> None:
        proxy.fail(
            listing(row(1, "created")),
            Fault(status=409, message="Container x is not running", match="kill"),
            answer("^GET .*/json$", 200, {"State": {"Status": "created"}}),
            answer("^DELETE", 204),
        )
        provider = opened(proxy.url)
        (machine,) = list_tidily(provider)
        assert machine.state is InstanceState.PENDING
        provider.terminate([machine.id])
        assert proxy.count("^DELETE") == 1

    def test_a_list_that_still_shows_what_was_killed_is_not_believed_for_a_while(
        self, proxy: EngineProxy
    ) -> None:
        now = 0.0
        provider = DockerProvider(
            settings(proxy.url), Cluster(name="site", uuid=UUID), clock=lambda: now
        )
        proxy.fail(listing(row(1)), answer("kill", 204))
        (machine,) = list_tidily(provider)
        (before,) = provider.offers(POOL)
        provider.terminate([machine.id])
        assert list_tidily(provider) == ()
        assert [o.free for o in provider.offers(POOL)] == [(before.free or 0) + 1]
        now = LISTING_LAG_S
        assert list_tidily(provider) == (machine,), "it has been started by somebody"


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        ("created", InstanceState.PENDING),
        ("running", InstanceState.RUNNING),
        ("paused", InstanceState.RUNNING),
        ("restarting", InstanceState.RUNNING),
        ("removing", InstanceState.STOPPING),
    ],
)
def test_states(proxy: EngineProxy, state: str, wanted: InstanceState) -> None:
    proxy.fail(listing(row(1, state), row(2, "exited"), row(3, "dead")))
    (machine,) = list_tidily(opened(proxy.url))
    assert (machine.state, machine.launched, machine.price) == (wanted, 1001.0, 0.02)


def test_two_clouds_of_one_engine_leave_each_others_machines_alone(proxy: EngineProxy) -> None:
    first = settings(proxy.url)
    second = DockerCloud(
        name="two", location=Location.ON_PREMISES, hosts=first.hosts, image="i", network="n",
        types={"small": SMALL},
    )  # fmt: skip
    config = Config(
        cluster=Cluster(name="site", uuid=UUID),
        clouds=(first, second),
        pools=(
            PoolSettings(name="box", cloud=NAME, nodes="bx[1-3]", cpus=2, memory=1024),
            PoolSettings(name="more", cloud="two", nodes="mo[1-3]", cpus=2, memory=1024),
        ),
    )
    ours, theirs = (open_provider(cloud, config.cluster, config) for cloud in (first, second))
    proxy.fail(listing(row(1), row(2, cloud="two"), row(3, cloud="renamed", pool="more")))
    assert [m.id for m in list_tidily(ours)] == [number_of(1)[:12]]
    assert [m.id for m in list_tidily(theirs)] == [number_of(n)[:12] for n in (2, 3)]
    ours.terminate([number_of(2)[:12]])
    assert proxy.count("kill") == 0


class TestWays:
    def test_a_socket_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(TransientError, match="no engine listens there"):
            opened(f"unix://{tmp_path}/none").check()

    def test_a_socket_that_slurm_may_not_use(self) -> None:
        refused = requests.exceptions.ConnectionError(
            "Connection aborted.", PermissionError(13, "Permission denied")
        )
        with pytest.raises(AuthError, match="may not use its socket"), translated(NAME, "h0"):
            raise refused

    def test_a_port_where_nobody_listens(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(TransientError):
                opened(url).check()

    def test_a_silent_one_beside_a_good_one_costs_one_time_out(
        self, proxy: EngineProxy, tmp_path: Path
    ) -> None:
        with running_proxy(tmp_path / "other.sock", None) as other:
            other.fail(Fault(silent=True))
            provider = opened(other.url, proxy.url, api_timeout=5.0)
            with awake() as took:
                assert [o.zone for o in provider.offers(POOL)] == ["h1"]
                # The silent one would be so for a minute.
                assert took() < stretched(15)

    def test_many_slow_answers_have_one_time_out_in_all(
        self, proxy: EngineProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each comes in time; together they would not."""
        monkeypatch.setattr(DockerCloud, "threads", 1)
        proxy.fail(
            Fault(status=201, body=b'{"Id": "1"}', match="create", delay=0.8),
            Fault(status=204, match="start$", delay=0.8),
        )
        provider = opened(proxy.url, api_timeout=2.0)
        with pytest.raises(TransientError):
            provider.launch(spec("bx1", "bx2", "bx3"))
        assert proxy.count("start$") < 3

    @pytest.mark.parametrize(
        ("key_mode", "missing", "why"),
        [(0o644, None, "may be read by others"), (0o600, "ca.pem", "cannot be read")],
    )
    def test_certificates_that_will_not_do(
        self, tmp_path: Path, key_mode: int, missing: str | None, why: str
    ) -> None:
        host = _tls_host(tmp_path, 1)
        (tmp_path / "key.pem").chmod(key_mode)
        if missing:
            (tmp_path / missing).unlink()
        with pytest.raises(AuthError, match=why):
            opened(hosts={"h0": host}).check()

    @pytest.mark.parametrize(
        ("file", "why"),
        [
            ("ca.pem", "ca.pem is no certificate in PEM form"),
            ("cert.pem", "cert.pem and .*key.pem are not a certificate and its key"),
            ("key.pem", "cert.pem and .*key.pem are not a certificate and its key"),
        ],
    )
    def test_files_that_hold_something_else(self, tmp_path: Path, file: str, why: str) -> None:
        host = _tls_host(tmp_path, 1)
        (tmp_path / file).write_text("nothing of the kind\n")
        with pytest.raises(AuthError, match=f"^boxes: NoCredentials: h0: .*{why}"):
            opened(hosts={"h0": host}).check()

    def test_a_key_that_wants_a_password_asks_nobody(self, tmp_path: Path) -> None:
        host = _tls_host(tmp_path, 1)
        (tmp_path / "key.pem").write_bytes(
            ec.generate_private_key(ec.SECP256R1()).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"emulator"),
            )
        )
        with pytest.raises(AuthError, match="without a password"):
            opened(hosts={"h0": host}).check()

    def test_the_key_of_another_certificate(self, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        _certificate(tmp_path / "other")
        host = _tls_host(tmp_path, 1)
        (tmp_path / "key.pem").write_bytes((tmp_path / "other" / "key.pem").read_bytes())
        with pytest.raises(AuthError, match=r"key\.pem is not the key of .*cert\.pem"):
            opened(hosts={"h0": host}).check()

    def test_a_refusal_that_was_lost_to_a_reset_is_heard(self, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        _certificate(tmp_path / "other")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            host = _tls_host(tmp_path, listener.getsockname()[1])
            server = threading.Thread(target=_hang_up_then_refuse, args=(listener, tmp_path))
            server.start()
            with pytest.raises(AuthError, match="h0: it refuses our certificate"):
                opened(hosts={"h0": host}).check()
            server.join()

    def test_certificates_for_a_port_without_tls(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            host = _tls_host(tmp_path, listener.getsockname()[1])
            server = threading.Thread(target=_answer_plainly, args=(listener,))
            server.start()
            with pytest.raises(AuthError, match="speaks no TLS"):
                opened(hosts={"h0": host}).check()
            server.join()

    @pytest.mark.parametrize(
        "answer",
        [
            "500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{}",
            "200 OK\r\nContent-Length: 4\r\n\r\n<p/>",
        ],
        ids=["an error", "a page"],
    )
    def test_what_was_answered_is_not_asked_about_again(self, tmp_path: Path, answer: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            host = _tls_host(tmp_path, listener.getsockname()[1])
            server = _TlsEngine(listener, tmp_path, answer)
            with pytest.raises(TransientError):
                opened(hosts={"h0": host}).check()
            server.join()
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()

    def test_tcp_shows_a_certificate_and_wants_one(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            host = _tls_host(tmp_path, listener.getsockname()[1])
            server = _TlsEngine(listener, tmp_path)
            list_tidily(opened(hosts={"h0": host}))
            server.join()
        assert server.seen == [(("commonName", "slurm-elastic test"),)]

    def test_another_certificate_than_the_ca_vouches_for(self, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        _certificate(tmp_path / "other")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            host = _tls_host(tmp_path, listener.getsockname()[1])
            server = _TlsEngine(listener, tmp_path / "other")
            with pytest.raises(AuthError, match="self-signed certificate"):
                opened(hosts={"h0": host}).check()
            server.join()


class _TlsEngine(threading.Thread):
    """Answers one connection with empty lists, or only so; ``seen`` are the names of who came."""

    def __init__(self, listener: socket.socket, directory: Path, answer: str = "") -> None:
        super().__init__()
        self._answers = [answer] if answer else [_ok(json.dumps(PING_VERSION)), _ok("[]")]
        self._listener = listener
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
        self._context.load_verify_locations(directory / "ca.pem")
        self._context.verify_mode = ssl.CERT_REQUIRED
        self.seen: list[Any] = []
        self.start()

    def run(self) -> None:
        self._listener.settimeout(60)
        raw, _ = self._listener.accept()
        raw.settimeout(60)
        with raw:
            try:
                with self._context.wrap_socket(raw, server_side=True) as connection:
                    self.seen.append(connection.getpeercert()["subject"][0])
                    self._serve(connection)
            except OSError:
                return

    def _serve(self, connection: ssl.SSLSocket) -> None:
        for answer in self._answers:
            asked = b""
            while not asked.endswith(b"\r\n\r\n"):
                asked += connection.recv(65536)
            connection.sendall(f"HTTP/1.1 {answer}".encode())


def _ok(body: str) -> str:
    return f"200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}"


def _hang_up_then_refuse(listener: socket.socket, directory: Path) -> None:
    """Trusts another authority than the one of the directory's certificate, which it shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    context.load_verify_locations(directory / "other" / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    listener.settimeout(60)
    listener.accept()[0].close()
    raw, _ = listener.accept()
    raw.settimeout(60)
    with raw, pytest.raises(ssl.SSLError), context.wrap_socket(raw, server_side=True):
        pass


def _answer_plainly(listener: socket.socket) -> None:
    listener.settimeout(60)
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def _tls_host(directory: Path, port: int) -> DockerHost:
    _certificate(directory)
    return DockerHost(
        url=f"tcp://127.0.0.1:{port}",
        ca_file=str(directory / "ca.pem"),
        cert_file=str(directory / "cert.pem"),
        key_file=str(directory / "key.pem"),
        cpus=8,
        memory=8192,
    )


def _certificate(directory: Path) -> None:
    """One for both sides, which is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "slurm-elastic test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    for file in ("ca.pem", "cert.pem"):
        (directory / file).write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (directory / "key.pem").touch(mode=0o600)
    (directory / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def test_without_the_sdk_the_cloud_names_the_extra() -> None:
    program = """
import sys
sys.modules["docker"] = None
from slurm_elastic.config import Cluster
from slurm_elastic.providers.docker.settings import DockerCloud, DockerHost, DockerType
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.providers import open_provider
cloud = DockerCloud(name="n", location="on-premises", hosts={"h": DockerHost()}, image="i",
                    network="n", types={"t": DockerType(cpus=1, memory=1)})
try:
    open_provider(cloud, Cluster(name="c", uuid="u"))
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install '.[docker]'" in done.stdout, done.stderr


def test_doctor_hears_of_each_host(proxy: EngineProxy, tmp_path: Path) -> None:
    proxy.fail(
        answer("/info", 200, {"ServerVersion": "26.1.5", "NCPU": 8}),
        Fault(status=404, message="No such image: node:1", match="/images/"),
        answer("/networks/slurm", 200, {"Id": "1"}),
    )
    provider = opened(proxy.url, f"unix://{tmp_path}/none")
    found = provider.examine(())
    assert [(f.subject, f.level, f.observed) for f in found] == [
        ("host h0", FindingLevel.OK, "engine 26.1.5, 8 cpus"),
        ("image node:1 on h0", FindingLevel.WRONG, "NoImage: h0: No such image: node:1"),
        ("network slurm on h0", FindingLevel.OK, "there"),
        ("host h1", FindingLevel.WRONG, "Unreachable: h1: no engine listens there"),
    ]
    assert "nothing of this cloud is repaired" in found[-1].expected


def test_a_sandbox_refuses_real_engines() -> None:
    with pytest.raises(SandboxError, match="real container engines"):
        require_emulated([settings("unix:///var/run/docker.sock")])
