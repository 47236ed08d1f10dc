"""An administrator's work on the control plane of a test, by openstacksdk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from patience import patience, pause

from .settings import PASSWORD, REGION, USER, Place

PATIENCE = 180.0
SERVICES = {
    "placement": "placement",
    "glance": "image",
    "network": "network",
    "nova": "compute",
}
FLAVORS = {"small": (2, 4096), "huge": (64, 4_000_000)}
HOST_MEMORY = 1 << 20
"""MiB of the one host; there is more than enough of all else."""


class Admin:
    """The administrator's view; ``servers`` are those of the project of the tests."""

    def __init__(self, clouds_file: str) -> None:
        self._clouds_file = clouds_file
        self.cloud: Any = self._connect("admin")
        self.project = ""
        self._fillers = 0

    def close(self) -> None:
        """Give the connections back."""
        self.cloud.close()

    def connect(self, entry: str = "site") -> Any:
        """Another connection, by default that of a plain user; close it."""
        return self._connect(entry)

    def _connect(self, entry: str) -> Any:
        import openstack  # each process of the tests imports this file, and few of them a cloud's SDK

        config = openstack.config.OpenStackConfig(
            config_files=[self._clouds_file], secure_files=[], load_envvars=False
        )
        return openstack.connection.Connection(
            config=config.get_one(cloud=entry), strict_proxies=False
        )

    # coming up

    def seed(self, place: Place) -> None:
        """Accounts and the catalog."""
        identity = self.cloud.identity
        roles = {role.name: role for role in identity.roles()}
        service = identity.create_project(name="service", domain_id="default")
        site = identity.create_project(name="hpc", domain_id="default")
        self.project = site.id
        if "service" not in roles:
            roles["service"] = identity.create_role(name="service")
        for name in ("nova", "placement", "glance"):
            self.add_user(name, service, (roles["admin"], roles["service"]))
        self.add_user(USER, site, (roles["member"],))
        for name, kind in SERVICES.items():
            entry = identity.create_service(name=name, type=kind)
            identity.create_endpoint(
                service_id=entry.id, interface="public", url=place.endpoint(name), region_id=REGION
            )
        # A token has the catalog of when it was made.
        self.cloud.close()
        self.cloud = self._connect("admin")

    def add_user(
        self, name: str, project: Any, roles: Iterable[Any], password: str = PASSWORD
    ) -> None:
        """An account of a project."""
        user = self.cloud.identity.create_user(
            name=name, password=password, domain_id="default", default_project_id=project.id
        )
        for role in roles:
            self.cloud.identity.assign_project_role_to_user(project, user, role)

    def add_operator(self, name: str) -> None:
        """An account of the tests' project that nova shows the hosts to."""
        identity = self.cloud.identity
        if identity.find_user(name) is None:
            role = identity.find_role("admin")
            self.add_user(name, identity.find_project("hpc"), (role,))

    def host_is_up(self) -> bool:
        """Whether nova's one host reports."""
        from openstack.exceptions import SDKException

        try:
            found = list(self.cloud.compute.services(binary="nova-compute"))
        except SDKException:
            return False
        return any(s.state == "up" for s in found)

    def stock(self) -> None:
        """Flavors and an image; returns when the scheduler has seen the host."""
        for name, (cpus, memory) in FLAVORS.items():
            self.flavor(name, cpus, memory)
        self.cloud.image.create_image(
            name="worker", disk_format="raw", container_format="bare", visibility="public",
            data=b"\0" * 1024, validate_checksum=False,
        )  # fmt: skip
        self.wait(self._host_counts, "placement knows the host")

    def _host_counts(self) -> bool:
        answer = self.cloud.placement.get("/resource_providers").json()
        inventories = [
            self.cloud.placement.get(f"/resource_providers/{p['uuid']}/inventories").json()
            for p in answer["resource_providers"]
        ]
        return any(i["inventories"] for i in inventories)

    # what happens to it

    def flavor(self, name: str, cpus: int, memory: int) -> str:
        """A flavor with a disk of a GiB; its id."""
        return str(self.cloud.compute.create_flavor(name=name, vcpus=cpus, ram=memory, disk=1).id)

    def quota(self, **limits: int) -> None:
        """``instances``, ``cores``, ``ram`` of the tests' project; -1 is no limit."""
        body = {"quota_set": {"force": True, **limits}}
        self._compute("PUT", f"/os-quota-sets/{self._project()}", body)

    def leave_room(self, memory: int) -> None:
        """Fill the host but for so many MiB, by a server of another project."""
        self.empty_host()
        self._fillers += 1
        name = f"filler-{self._fillers}"
        size = HOST_MEMORY - memory
        if size <= 0:
            return
        flavor = self.flavor(name, 1, size)
        image = next(iter(self.cloud.image.images(name="worker"))).id
        made = self.cloud.compute.create_server(
            name=name, flavor_id=flavor, image_id=image, networks="none"
        )
        self.wait(lambda: self._status(made.id) == "ACTIVE", "the host is filled")

    def empty_host(self) -> None:
        """Take away what fills it."""
        for server in self.cloud.compute.servers():
            self.cloud.compute.delete_server(server.id)
        self.wait(lambda: not list(self.cloud.compute.servers()), "the host is empty")

    def enable_host(self, *, enabled: bool) -> None:
        """Whether the scheduler may use the host."""
        (service,) = self.cloud.compute.services(binary="nova-compute")
        status = "enabled" if enabled else "disabled"
        self._compute("PUT", f"/os-services/{service.id}", {"status": status})

    def servers(self) -> dict[str, Any]:
        """All servers of the tests' project by id, those that are being deleted left out."""
        found = self.cloud.compute.servers(all_projects=True, project_id=self._project())
        return {s.id: s for s in found if s.task_state != "deleting" and s.status != "DELETED"}

    def settled(self) -> set[str]:
        """The ids of all servers of the tests' project, when none is being deleted any more."""
        before: set[str] | None = None
        found: list[set[str]] = []

        def twice() -> bool:
            nonlocal before
            there = list(self.cloud.compute.servers(all_projects=True, project_id=self._project()))
            leaving = any(map(self._is_leaving, there))
            now = None if leaving else {s.id for s in there}
            same = now is not None and now == before
            found[:] = [now or set()]
            before = now
            return same

        self.wait(twice, "nothing is being deleted")
        return found[0]

    def _is_leaving(self, server: Any) -> bool:
        """A boot under way hides that a deletion was asked for; the record of actions has it."""
        if server.task_state == "deleting":
            return True
        answer = self.cloud.compute.get(f"/servers/{server.id}/os-instance-actions")
        if answer.status_code == 404:
            return True
        return any(a["action"] == "delete" for a in answer.json()["instanceActions"])

    def clear(self) -> None:
        """Delete all servers of the tests' project; returns when they are gone."""

        def none_left() -> bool:
            there = list(self.cloud.compute.servers(all_projects=True, project_id=self._project()))
            for server in there:
                if server.task_state != "deleting":
                    self.cloud.compute.delete_server(server.id)
            return not there

        self.wait(none_left, "all servers are gone")

    def is_empty(self) -> bool:
        """Whether the project has no server at all, those that are being deleted included."""
        return not list(self.cloud.compute.servers(all_projects=True, project_id=self._project()))

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Until it is so; AssertionError after three minutes."""
        began = time.monotonic()
        until = began + patience(PATIENCE)
        while not ready():
            assert time.monotonic() < until, f"not within {PATIENCE:g} s: {what}"
            pause(began, 0.2)

    def _status(self, server: str) -> str:
        status = self.cloud.compute.get_server(server).status
        assert status != "ERROR", "the filler found no place"
        return str(status)

    def _project(self) -> str:
        if not self.project:
            self.project = self.cloud.identity.find_project("hpc").id
        return self.project

    def _compute(self, method: str, path: str, body: object) -> Any:
        from openstack.exceptions import raise_from_response

        answer = self.cloud.compute.request(path, method, json=body, microversion="2.69")
        raise_from_response(answer)
        return answer.json()
