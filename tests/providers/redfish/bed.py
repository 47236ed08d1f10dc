"""The hosts of OpenStack's BMC emulator (sushy-tools, its fake driver), served by HTTP in this process;
in front of it something has calls go wrong.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sushy_tools.emulator import main as emulator
from sushy_tools.emulator.resources.systems.fakedriver import FakeDriver
from werkzeug.serving import WSGIRequestHandler, make_server

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import Location, Market, Pool
from slurm_elastic.model.protocols import Provider, list_tidily
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.base.hosts.bmc import redfish_of
from slurm_elastic.providers.base.hosts.claims import Claims
from slurm_elastic.providers.base.hosts.switched import SwitchedHosts
from slurm_elastic.providers.base.tags import GENERATION
from slurm_elastic.providers.redfish.settings import RedfishCloud
from slurm_elastic.testing.contract import CLUSTER, UUID
from slurm_elastic.testing.matrix import times

HOSTS = tuple(f"h{n}" for n in range(1, 7))
CALLS = {
    "launch": ("POST", re.compile('"On"')),
    "list": ("GET", re.compile("")),
    "terminate": ("POST", re.compile("Off|Shutdown")),
}
STATUSES = {"throttle": 429, "internal": 500, "auth": 401, "quota": 403}
EVERY = 10**6


class Bmcs:
    """``systems`` is the emulator's driver: a person at the hosts' own buttons."""

    def __init__(self, directory: Path) -> None:
        systems = [
            {"uuid": f"00000000-0000-0000-0000-{n:012d}", "name": name, "power_state": "Off", "nics": []}
            for n, name in enumerate(HOSTS)
        ]  # fmt: skip
        emulator.app.config.update(
            SUSHY_EMULATOR_FAKE_DRIVER=True, SUSHY_EMULATOR_FAKE_SYSTEMS=systems,
            SUSHY_EMULATOR_STATE_DIR=str(directory),
        )  # fmt: skip
        emulator.app.__dict__.pop("_cache", None)
        self.systems: FakeDriver = emulator.app.systems
        self.ids = {one["name"]: one["uuid"] for one in systems}
        self.url = ""
        self.trouble: dict[str, list[Any]] = {}
        self.healed = threading.Event()

    def press(self, host: str, power: str) -> None:
        self.systems._update(self.ids[host], power_state=power, pending_power=None)

    def on(self) -> set[str]:
        return {
            h for h, number in self.ids.items() if self.systems._get(number)["power_state"] == "On"
        }

    def clear(self) -> None:
        self.heal()
        for host in HOSTS:
            self.press(host, "Off")

    def heal(self) -> None:
        self.trouble = {}
        self.healed.set()
        self.healed = threading.Event()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)).decode()
        call = next(
            c for c, (method, words) in CALLS.items()
            if method == environ["REQUEST_METHOD"] and words.search(body)
        )  # fmt: skip
        fault, left = self.trouble.get(call, ("", 0))
        if left:
            self.trouble[call] = [fault, left - 1]
        else:
            fault = ""
        if fault in STATUSES:
            start(f"{STATUSES[fault]} as asked", [("Content-Type", "application/json")])
            return [json.dumps({"error": {"message": f"{fault} exceeded"}}).encode()]
        if fault == "silent":
            self.healed.wait(60)
        if fault not in ("reset before", "silent"):
            self._carry_out(environ["PATH_INFO"], body)
        if fault == "time-out":
            self.healed.wait(12)
        if fault in ("reset before", "reset after", "time-out", "silent"):
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        if fault == "slow answer":
            self.healed.wait(0.2)
        if fault == "wrong data":
            start("200 OK", [("Content-Type", "text/html")])
            return [b"<html>log in</html>"]
        if body:
            start("204 No Content", [])
            return []
        return emulator.app(environ, start)

    def _carry_out(self, path: str, body: str) -> None:
        """The fake driver lets up to 11 s pass; here a test would wait for them."""
        if body:
            host = path.split("/")[4]
            self.systems._update(
                self.ids.get(host, host), power_state="On" if '"On"' in body else "Off"
            )


class _Quiet(WSGIRequestHandler):
    def log(self, *_: Any, **__: Any) -> None: ...


@contextmanager
def running(directory: Path) -> Iterator[Bmcs]:
    bmcs = Bmcs(directory)
    server = make_server("127.0.0.1", 0, bmcs, threaded=True, request_handler=_Quiet)
    bmcs.url = f"http://127.0.0.1:{server.server_port}/redfish/v1/Systems"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield bmcs
    finally:
        bmcs.heal()
        server.shutdown()
        thread.join()
        server.server_close()


def rack(place: Path, **more: Any) -> RedfishCloud:
    return RedfishCloud(
        name="rack", location=Location.ON_PREMISES, claims_file=str(place / "claims.db"),
        types={"host": InstanceType(cpus=2, memory=4096, price=0.05)}, **more,
    )  # fmt: skip


class RedfishBed:
    name = "redfish"
    pool = Pool(
        name="r", cloud="rack", nodes=HOSTS[:5], cpus=2, real_memory=3000,
        instance_types=("host",), markets=(Market.RESERVED,),
    )  # fmt: skip

    def __init__(self, bmcs: Bmcs, place: Path) -> None:
        self.bmcs, self.place = bmcs, place
        self.busy: set[str] = set()
        bmcs.clear()
        self.login = place / "bmc.json"
        self.login.touch(mode=0o600)
        self.login.write_text(json.dumps({"username": "elastic", "password": "emulator"}))

    def settings(self, timeout: float = 6.0) -> RedfishCloud:
        hosts = {h: f"{self.bmcs.url}/{number}" for h, number in self.bmcs.ids.items()}
        return rack(self.place, api_timeout=timeout, credentials_file=str(self.login), hosts=hosts)

    def open(self, uuid: str = UUID, timeout: float = 60.0) -> Provider:
        return open_provider(self.settings(timeout), Cluster(name="site", uuid=uuid))

    def claims(self) -> Mapping[str, Any]:
        return Claims("rack", self.place / "claims.db").all()

    def alive(self) -> set[str]:
        claims = self.claims()
        on = self.bmcs.on() - self.busy
        return {f"{h}-{claims[h].marks[GENERATION]}" if h in claims else h for h in on}

    def add_foreign(self) -> set[str]:
        self.bmcs.press(HOSTS[5], "On")
        return {HOSTS[5]}

    def limit(self, count: int) -> None:
        """People are at all others."""
        self.busy = set(HOSTS[count:])
        for host in self.busy:
            self.bmcs.press(host, "On")

    def fail_late(self, node: str) -> Callable[[], None]:
        """Its power supply fails once it has been seen on."""

        def fail() -> None:
            assert node in {m.node for m in list_tidily(self.open())}
            self.bmcs.press(node, "Off")

        return fail

    def fail(self, error: type[ProviderError]) -> None:
        words = {QuotaError: "quota", AuthError: "auth", TransientError: "internal"}
        if error is CapacityError:
            self.limit(0)
            return
        calls = ["launch"] if error is QuotaError else CALLS
        self.bmcs.trouble = {call: [words[error], EVERY] for call in calls}

    def lose_answers(self) -> None:
        self.bmcs.trouble = {"launch": ["reset after", EVERY]}

    def fall_silent(self) -> None:
        self.bmcs.trouble = {call: ["silent", EVERY] for call in CALLS}

    def heal(self) -> None:
        self.bmcs.heal()
        for host in self.busy:
            self.bmcs.press(host, "Off")
        self.busy = set()


class MatrixBed(RedfishBed):
    def open(self, clock: Callable[[], float]) -> Provider:  # type: ignore[override]
        settings = self.settings()
        claims = Claims("rack", self.place / "claims.db")
        return SwitchedHosts(settings, CLUSTER, redfish_of(settings), claims, clock, clock)

    def nodes(self) -> Mapping[str, str]:
        return {one: one.partition("-")[0] for one in self.alive()}

    def strike(self, fault: str, call: str) -> bool:
        if fault == "quota" or (fault == "capacity" and call != "launch"):
            return False  # no BMC says so
        if fault == "capacity":
            self.limit(0)
            return True
        self.bmcs.trouble[call] = [fault, times(fault, call)]
        return True

    def standing(self) -> object:
        return {call: left for call, (_, left) in self.bmcs.trouble.items()}
