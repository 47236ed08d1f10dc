"""A stand-in for the few requests of OpenStack that the provider makes, for what a real one cannot
be made to do: resets, silence, half answers, nonsense. Its other answers are those of nova 31
(tests/realcloud/openstack proves the provider on that).
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct, field
from patience import patience
from providers.openstack.stand_in_network import Neutron

PASSWORD = "stand-in-password"
FLAVORS = {"small": (2, 4096), "big": (64, 262144)}
IMAGE = "11111111-aaaa-4bbb-8ccc-222222222222"
ZONES = {"nova": True, "old": False}
GROUPS = [("11111111-aaaa-4bbb-8ccc-333333333333", "web"), ("sg-2", "twice"), ("sg-3", "twice")]
NO_HOST = "No valid host was found. "


class Kind(StrEnum):
    """Kinds of faults."""

    STATUS = "status"
    STATUS_AFTER = "status-after"
    NONSENSE = "nonsense"
    NOT_JSON = "not-json"
    RESET_BEFORE = "reset-before"
    RESET_AFTER = "reset-after"
    SILENT_BEFORE = "silent-before"
    SILENT_AFTER = "silent-after"
    DRIP = "drip"
    SLOW = "slow"
    HALF = "half"


class Fault(Struct, kw_only=True):
    """Befalls requests whose ``METHOD /path`` fits ``on``, ``count`` of them (None: all)."""

    kind: Kind
    on: str = "*"
    count: int | None = None
    status: int = 500
    body: str = '{"computeFault": {"code": 500, "message": "Unexpected API Error."}}'


class World(Struct, kw_only=True):
    """All there is. ``neutron``: networks that can be made, if a test wants them; ``capacity``: machines the scheduler has room for; ``quota``: of instances;
    ``spoilt``: what is sent to glance is not what it keeps.
    """

    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    deleted: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    capacity: int = 10**6
    quota: int = -1
    page: int = 1000
    schedule: float = 0.0
    password: str = PASSWORD
    fault_text: str = NO_HOST
    visible_after: float = 0.0
    delete_conflicts: int = 0
    delete_lags: bool = False
    images: list[dict[str, Any]] = field(default_factory=list)
    spoilt: bool = False
    password_ends: str | None = None
    credential_ends: str | None = None
    credentials: dict[str, dict[str, Any]] = field(default_factory=dict)
    user: str = "u"
    """The user who logs in. ``credentials`` are those of user u."""
    roles: tuple[str, ...] = ("admin", "member", "reader")
    neutron: Neutron | None = None


class StandIn:
    """One project, served on a free port of loopback.

    With ``behind``, the base URL of a real nova, it only passes requests on, does its faults, and has
    lists lack what is younger than ``visible_after``.
    """

    def __init__(self, behind: str = "") -> None:
        self.behind = behind
        self.world = World()
        self.lock = threading.RLock()
        self.released = threading.Event()
        stand_in = self

        class Handler(_Handler):
            owner = stand_in

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def serving(self) -> Iterator[StandIn]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.heal()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def reset(self) -> None:
        self.heal()
        self.world = World()

    def heal(self) -> None:
        with self.lock:
            self.world.faults.clear()
            self.released.set()
            self.released = threading.Event()

    def fail(self, kind: Kind, on: str = "*", count: int | None = None, **more: Any) -> None:
        with self.lock:
            self.world.faults.append(Fault(kind=kind, on=on, count=count, **more))

    def refuse(self, status: int, message: str, on: str = "*", count: int | None = None) -> None:
        body = json.dumps({"forbidden": {"code": status, "message": message}})
        self.fail(Kind.STATUS, on, count, status=status, body=body)

    def calls(self, pattern: str) -> int:
        with self.lock:
            return sum(fnmatchcase(r, pattern) for r in self.world.requests)

    def add(self, **values: Any) -> str:
        """A server that is not the provider's doing."""
        with self.lock:
            return _server(self.world, values)["id"]

    def without_fresh(self, text: str) -> str:
        """A list of the real nova, as one that lags shows it."""
        words = json.loads(text)
        shown = datetime.fromtimestamp(time.time() - self.world.visible_after, UTC)
        words["servers"] = [
            s
            for s in words["servers"]
            if not self.world.visible_after
            or datetime.fromisoformat(s.get("created", "1970-01-01T00:00:00Z")) <= shown
        ]
        return json.dumps(words)

    def struck(self, request: str) -> Fault | None:
        with self.lock:
            for fault in self.world.faults:
                if fnmatchcase(request, fault.on) and fault.count != 0:
                    if fault.count is not None:
                        fault.count -= 1
                    return fault
        return None


def _server(world: World, values: Mapping[str, Any]) -> dict[str, Any]:
    now = time.time()
    one = {
        "id": str(uuid.uuid4()),
        "name": "theirs",
        "status": "ACTIVE",
        "metadata": {},
        "hostId": "h1",
        "addresses": {"lan": [{"addr": f"10.0.0.{len(world.servers) % 250}", "version": 4}]},
        "created": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "OS-EXT-STS:task_state": None,
        "OS-SRV-USG:launched_at": "2026-11-20T00:00:00.000000",
        "due": now,
        "visible": now,
        "fault": None,
        **values,
    }
    world.servers[one["id"]] = one
    return one


class _Handler(BaseHTTPRequestHandler):
    owner: StandIn

    def do(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        path = urlsplit(self.path).path
        request = f"{self.command} {path}"
        with self.owner.lock:
            self.owner.world.requests.append(request)
        fault = self.owner.struck(request)
        with suppress(OSError):
            self.answer(fault, body)

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = do  # noqa: N815

    def answer(self, fault: Fault | None, body: bytes) -> None:
        kind = fault.kind if fault else None
        if fault is not None and kind in (Kind.STATUS, Kind.STATUS_AFTER):
            if kind is Kind.STATUS_AFTER:
                self.served(body)
            self.send(fault.status, fault.body)
        elif kind is Kind.NONSENSE:
            self.send(200, '{"servers": [17], "limits": "?", "server": {}, "flavors": {}}')
        elif kind is Kind.NOT_JSON:
            self.served(body)
            self.send(200, "<html>a proxy's page</html>")
        elif kind is Kind.RESET_BEFORE:
            self.reset()
        elif kind is Kind.SILENT_BEFORE:
            self.owner.released.wait(30)
        elif kind is Kind.SLOW:
            self.owner.released.wait(0.2)
            self.after(None, *self.served(body))
        else:
            self.after(kind, *self.served(body))

    def after(self, kind: Kind | None, status: int, text: str) -> None:
        if kind is Kind.RESET_AFTER:
            self.reset()
        elif kind is Kind.SILENT_AFTER:
            self.owner.released.wait(30)
        elif kind in (Kind.DRIP, Kind.HALF):
            self.head(status, len(text) + 1000)
            self.wfile.write(text[: len(text) // 2].encode())
            for _ in range(300 if kind is Kind.DRIP else 0):
                if self.owner.released.wait(0.1):
                    return
                self.wfile.write(b" ")
        else:
            self.send(status, text)

    def reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.close()

    def head(self, status: int, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        if self.path.endswith("/tokens"):
            self.send_header("X-Subject-Token", "stand-in-token")
        self.end_headers()

    def send(self, status: int, text: str) -> None:
        data = text.encode()
        self.head(status, len(data))
        self.wfile.write(data)

    def served(self, body: bytes) -> tuple[int, str]:
        if self.owner.behind:
            return self.passed_on(body)
        with self.owner.lock:
            if match := re.fullmatch(r"/image/v2/images/([0-9a-f-]{36})/file", self.path):
                _keep(self.owner.world, match[1], body)
                return 204, ""
            words = json.loads(body or b"null")
            status, answer = _route(self.owner, self.command, self.path, words)
        return status, "" if answer is None else json.dumps(answer)

    def passed_on(self, body: bytes) -> tuple[int, str]:
        parts = urlsplit(self.owner.behind)
        kept = ("X-Auth-Token", "OpenStack-API-Version", "Content-Type", "Accept")
        headers = {name: self.headers[name] for name in kept if name in self.headers}
        connection = HTTPConnection(parts.netloc, timeout=patience(60))
        try:
            path = self.path.replace("/compute/v2.1", parts.path, 1)
            connection.request(self.command, path, body or None, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        lists = re.match(r"/compute/v2\.1/servers(/detail)?(\?|$)", self.path)
        if lists and self.command == "GET" and answer.status == 200:
            text = self.owner.without_fresh(text)
        return answer.status, text

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def _route(owner: StandIn, method: str, target: str, body: Any) -> tuple[int, Any]:
    parts, world = urlsplit(target), owner.world
    query = {k: v[0] for k, v in parse_qs(parts.query).items()}
    path = parts.path.rstrip("/")
    _advance(world)
    if world.neutron is not None:
        answer = world.neutron.answer(method, path, query, body, world.servers)
        if answer is not None:
            return answer
    if method == "GET" and re.fullmatch(r"/(compute/v2\.1|image/v2|network/v2\.0)", path):
        return 200, _version(owner, path)
    if match := re.fullmatch(r"/compute/v2\.1/servers/([0-9a-f-]{36})", path):
        return _single(world, method, match[1])
    if match := re.fullmatch(r"/compute/v2\.1/servers/([0-9a-f-]{36})/action", path):
        return _act(world, match[1], next(iter(body)))
    if match := re.fullmatch(r"/v3/users/\w+/application_credentials(?:/([0-9a-f-]{36}))?", path):
        return _credential(world, method, match[1], body)
    if path == "/v3/users/u/application_credentials/ac":
        return 200, {"application_credential": {"expires_at": world.credential_ends}}
    if match := re.fullmatch(r"/image/v2/images/([0-9a-f-]{36})", path):
        return _image(world, method, match[1], body)
    if (method, path) == ("POST", "/image/v2/images"):
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        made = {"id": str(uuid.uuid4()), "status": "queued", "size": None, "created_at": now}
        world.images.insert(0, made | body)
        return 201, world.images[0]
    return _listed(owner, f"{method} {path}", query, body)


def _credential(world: World, method: str, number: str | None, body: Any) -> tuple[int, Any]:
    """As keystone: names are unique, the secret is shown once, roles are those of the login."""
    if method == "GET":
        return 200, {"application_credentials": [
            {key: value for key, value in one.items() if key != "secret"}
            for one in world.credentials.values()
            if world.user == "u"
        ]}  # fmt: skip
    if method == "DELETE":
        if world.credentials.pop(number or "", None) is None:
            return 404, {"error": {"code": 404, "message": f"{number} could not be found."}}
        return 204, None
    asked = body["application_credential"]
    if any(one["name"] == asked["name"] for one in world.credentials.values()):
        words = f"Duplicate entry found with name {asked['name']}."
        return 409, {"error": {"code": 409, "message": words, "title": "Conflict"}}
    if unknown := [role for role in asked["roles"] if role["name"] not in world.roles]:
        return 400, {"error": {"code": 400, "message": f"no role {unknown}"}}
    made = {"id": str(uuid.uuid4()), "project_id": "p", "unrestricted": False, **asked}
    world.credentials[made["id"]] = made
    return 201, {"application_credential": made}


def _image(world: World, method: str, number: str, body: Any) -> tuple[int, Any]:
    known = {
        i["id"]: i for i in ({"id": IMAGE, "name": "worker", "status": "active"}, *world.images)
    }
    if number not in known:
        return 404, _nothing(request=f"image {number}")
    one = known[number]
    if method == "DELETE":
        world.images.remove(one)
        return 204, None
    for change in body or () if method == "PATCH" else ():
        key = change["path"].removeprefix("/")
        if change["op"] == "remove":
            del one[key]
        else:
            one[key] = change["value"]
    return 200, one


def _keep(world: World, number: str, data: bytes) -> None:
    """The image's content."""
    data = b"?" * len(data) if world.spoilt else data
    for one in world.images:
        if one["id"] == number:
            one |= {
                "status": "active", "size": len(data), "os_hash_algo": "sha512",
                "os_hash_value": hashlib.sha512(data).hexdigest(),
            }  # fmt: skip


SWITCHED = {"os-stop": ("ACTIVE", "SHUTOFF"), "os-start": ("SHUTOFF", "ACTIVE")}


def _act(world: World, number: str, verb: str) -> tuple[int, Any]:
    if number not in world.servers:
        return 404, {"itemNotFound": {"code": 404, "message": f"Instance {number}"}}
    one = world.servers[number]
    if verb == "os-getConsoleOutput":
        return 200, {"output": "printed by " + number}
    before, after = SWITCHED[verb]
    if one["status"] != before:
        state = {"ACTIVE": "active", "SHUTOFF": "stopped"}.get(one["status"], "building")
        text = f"Cannot '{verb[3:]}' instance {number} while it is in vm_state {state}"
        return 409, {"conflictingRequest": {"code": 409, "message": text}}
    one["status"] = after
    return 202, None


def _nothing(request: str) -> Any:
    return {"itemNotFound": {"code": 404, "message": f"no {request}"}}


def _listed(owner: StandIn, request: str, query: Mapping[str, str], body: Any) -> tuple[int, Any]:
    world = owner.world
    match request:
        case "GET /v3":
            link = [{"rel": "self", "href": f"{owner.url}/v3/"}]
            return 200, {"version": {"id": "v3.14", "status": "stable", "links": link}}
        case "POST /v3/auth/tokens":
            return _token(owner, body)
        case "GET /compute/v2.1/servers" | "GET /compute/v2.1/servers/detail":
            return 200, _page(owner, query)
        case "POST /compute/v2.1/servers":
            return _create(world, body["server"])
        case "GET /compute/v2.1/limits":
            used = {
                "totalInstancesUsed": len(world.servers),
                "totalCoresUsed": 2 * len(world.servers),
            }
            most = {"maxTotalInstances": world.quota, "maxTotalCores": -1}
            return 200, {"limits": {"absolute": used | most}}
        case "GET /compute/v2.1/flavors/detail":
            shapes = [
                {"id": f"id-{n}", "name": n, "vcpus": c, "ram": m} for n, (c, m) in FLAVORS.items()
            ]
            start = [s["id"] for s in shapes].index(query["marker"]) + 1 if "marker" in query else 0
            more = start + world.page < len(shapes)
            links = {"flavors_links": [{"rel": "next", "href": "?"}]} if more else {}
            return 200, {"flavors": shapes[start : start + world.page], **links}
        case "GET /image/v2/images":
            if "name" not in query:
                ids = [str(image["id"]) for image in world.images]
                start = ids.index(query["marker"]) + 1 if "marker" in query else 0
                more = start + world.page < len(ids)
                link = {"next": "/v2/images?"} if more else {}
                return 200, {"images": world.images[start : start + world.page], **link}
            there = [{"id": IMAGE}] if query["name"] == "worker" else []
            return 200, {"images": there}
        case "GET /network/v2.0/networks":
            nets = {"lan": 1, "twice": 2}.get(query.get("name", "lan"), 0)
            return 200, {"networks": [{"id": f"net-{n}", "name": "lan"} for n in range(nets)]}
    return _site(request, query)


def _site(request: str, query: Mapping[str, str]) -> tuple[int, Any]:
    """The answers that no request changes."""
    match request:
        case "GET /compute/v2.1/os-availability-zone":
            zones = [{"zoneName": n, "zoneState": {"available": up}} for n, up in ZONES.items()]
            return 200, {"availabilityZoneInfo": zones}
        case "GET /compute/v2.1/os-keypairs/admin":
            return 200, {"keypair": {"name": "admin"}}
        case "GET /network/v2.0/security-groups":
            asked = query.get("name") or query["id"]
            return 200, {"security_groups": [{"id": g} for g, n in GROUPS if asked in (g, n)]}
    return 404, _nothing(request)


def _version(owner: StandIn, path: str) -> Any:
    name = path.rpartition("/")[2]
    return {
        "version": {
            "id": name,
            "status": "CURRENT",
            "version": "2.100",
            "min_version": "2.1",
            "links": [{"rel": "self", "href": f"{owner.url}{path}/"}],
        }
    }


def _token(owner: StandIn, body: Any) -> tuple[int, Any]:
    identity = body["auth"]["identity"]
    credential = identity.get("application_credential")
    password = credential["secret"] if credential else PASSWORD
    made = next(
        (one for one in owner.world.credentials.values() if one["secret"] == password), None
    )
    if made is not None and made["name"] == (credential or {}).get("name"):
        password = owner.world.password
    if "password" in identity:
        password = identity["password"]["user"]["password"]
    if password != owner.world.password:
        words = "The request you have made requires authentication."
        return 401, {"error": {"code": 401, "message": words, "title": "Unauthorized"}}
    urls = {"compute": "compute/v2.1", "image": "image/v2", "network": "network/v2.0"}
    catalog = [
        {
            "type": service,
            "name": service,
            "endpoints": [
                {
                    "interface": "public",
                    "region_id": "here",
                    "region": "here",
                    "url": f"{owner.url}/{url}",
                }
            ],
        }
        for service, url in urls.items()
    ]
    domain = {"id": "default", "name": "Default"}
    return 201, {
        "token": {
            "expires_at": "2036-01-01T00:00:00.000000Z",
            "issued_at": "2026-01-01T00:00:00.000000Z",
            "methods": identity["methods"],
            "user": {
                "id": owner.world.user,
                "name": "elastic",
                "domain": domain,
                "password_expires_at": owner.world.password_ends,
            },
            **(
                {"application_credential": {"id": made["id"] if made else "ac", "restricted": True}}
                if credential
                else {}
            ),
            "project": {"id": "p", "name": "hpc", "domain": domain},
            "roles": [{"name": name} for name in owner.world.roles],
            "catalog": catalog,
        }
    }


def _advance(world: World) -> None:
    """Servers that have been scheduled and booted by now; all of a call or none."""
    now = time.time()
    waiting: dict[str, list[dict[str, Any]]] = {}
    for one in world.servers.values():
        if one["status"] == "BUILD" and one["due"] <= now:
            waiting.setdefault(one["call"], []).append(one)
    for batch in waiting.values():
        running = sum(s["status"] == "ACTIVE" for s in world.servers.values())
        fits = running + len(batch) <= world.capacity
        for one in batch:
            one |= {"OS-EXT-STS:task_state": None, "status": "ACTIVE" if fits else "ERROR"}
            if fits:
                one |= {"hostId": "h1", "OS-SRV-USG:launched_at": "2026-11-20T00:00:00.000000"}
            else:
                one["fault"] = {"code": 500, "message": world.fault_text, "created": "?"}


def _create(world: World, order: Mapping[str, Any]) -> tuple[int, Any]:
    world.bodies.append(order)
    most = order["max_count"]
    if world.quota >= 0:
        room = max(world.quota - len(world.servers), 0)
        if room < order["min_count"]:
            words = f"Quota exceeded for instances: Requested {order['min_count']}, but already used {len(world.servers)} of {world.quota} instances"
            return 403, {"forbidden": {"code": 403, "message": words}}
        most = min(most, room)
    made = [
        _server(
            world,
            {
                "name": order["name"] + (f"-{n + 1}" if most > 1 else ""),
                "metadata": dict(order["metadata"]),
                "image": {"id": order["imageRef"]} if order["imageRef"] else "",
                "status": "BUILD",
                "hostId": "",
                "OS-EXT-STS:task_state": "scheduling",
                "OS-SRV-USG:launched_at": None,
                "due": time.time() + world.schedule,
                "visible": time.time() + world.visible_after,
                "call": str(len(world.bodies)),
                "order": dict(order),
                "key_name": order.get("key_name"),
            },
        )
        for n in range(most)
    ]
    return 202, {"server": {"id": made[0]["id"], "adminPass": "not-for-logs"}}


def _page(owner: StandIn, query: Mapping[str, str]) -> Any:
    world = owner.world
    found = [s for s in world.servers.values() if s["visible"] <= time.time()]
    if "changes-since" in query:
        found += world.deleted.values()
    found = [s for s in found if re.search(query.get("name", ""), s["name"])]
    ids = [s["id"] for s in found]
    start = ids.index(query["marker"]) + 1 if "marker" in query else 0
    limit = min(int(query.get("limit", world.page)), world.page)
    page = found[start : start + limit]
    hidden = ("due", "visible", "call", "fault", "order")
    shown = [{k: v for k, v in s.items() if k not in hidden} for s in page]
    answer: dict[str, Any] = {"servers": shown}
    if start + limit < len(found):
        answer["servers_links"] = [{"rel": "next", "href": "?"}]
    return answer


def _single(world: World, method: str, number: str) -> tuple[int, Any]:
    one = world.servers.get(number)
    if one is None:
        words = f"Instance {number} could not be found."
        return 404, {"itemNotFound": {"code": 404, "message": words}}
    if method == "GET":
        return 200, {"server": one}
    if world.delete_conflicts:
        world.delete_conflicts -= 1
        words = f"Cannot 'delete' instance {number} while it is in task_state migrating"
        return 409, {"conflictingRequest": {"code": 409, "message": words}}
    if world.delete_lags:
        one["OS-EXT-STS:task_state"] = "deleting"
        return 204, None
    del world.servers[number]
    world.deleted[number] = one | {"status": "DELETED", "metadata": {}}
    return 204, None
