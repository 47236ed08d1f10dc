"""The access rules of ``iam render openstack`` let through all that the provider asks, and nothing
else: every request of the contract suite is put before them, as keystonemiddleware does.
"""

from __future__ import annotations

import json
import re
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from image.files import image_at
from msgspec.structs import replace
from providers.openstack.bed import StackBed
from providers.openstack.stand_in import GROUPS, StandIn

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.config import Cluster
from slurm_elastic.config.grants import GrantUse, Holder
from slurm_elastic.image.upload import image_file, upload
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.protocols import Examinable, Expiring, Provider
from slurm_elastic.providers import open_images, open_provider
from slurm_elastic.providers.openstack import CLOUD, client
from slurm_elastic.testing.contract import UUID, LaunchContract, spec_for

ROOTS = {"compute": "/v2.1", "image": "/v2", "network": "/v2.0", "identity": "/v3"}


class GatedBed(StackBed):
    """Refuses what no rule of the opened clouds lets through; keeps the rules that were used."""

    holder = Holder.SERVICES
    console = True

    def __init__(self, stand_in: StandIn, directory: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(stand_in, directory)
        self.rules: set[tuple[str, str, str]] = set()
        self.used: set[tuple[str, str, str]] = set()
        real = client.OpenStackApi._answered

        def answered(api, service: str, method: str, path: str, *more: object):
            self.used |= self.matching(service, method, path)
            return real(api, service, method, path, *more)

        patch.setattr(client.OpenStackApi, "_answered", answered)
        own_user = client.OpenStackApi.own_user

        def of_own_user(api, method: str, path: str, *more: object):
            self.used |= self.matching("identity", method, f"/users/u{path}")
            return own_user(api, method, path, *more)

        patch.setattr(client.OpenStackApi, "own_user", of_own_user)
        self.login_by_credential()

    def matching(self, service: str, method: str, path: str) -> set[tuple[str, str, str]]:
        whole = ROOTS[service] + path.partition("?")[0]
        found = {
            (s, m, pattern)
            for s, m, pattern in self.rules
            if (s, m) == (service, method)
            and re.fullmatch(re.escape(pattern).replace(r"\*", "[^/]+"), whole)
        }
        assert found, f"no rule for {service} {method} {whole}"
        # The one without a wildcard is the one that was meant.
        return {min(found, key=lambda rule: rule[2].count("*"))}

    def open(self, uuid: str = UUID, timeout: float = 60.0, **more: object) -> Provider:
        settings, cluster = (
            self.settings(api_timeout=timeout, **more),
            Cluster(name="site", uuid=uuid),
        )
        use = GrantUse(cluster=cluster, pools=(self.pool,), console=self.console)
        for rule in json.loads(CLOUD.grant(settings, use, self.holder).text):
            self.rules.add((rule["service"], rule["method"], rule["path"]))
        return open_provider(settings, cluster)


@pytest.fixture
def bed(stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GatedBed:
    return GatedBed(stand_in, tmp_path, monkeypatch)


class TestByRules(LaunchContract): ...


def live(bed: GatedBed, **more: object) -> None:
    """All that the services and doctor ask of a cloud, in a machine's life."""
    provider = bed.open(**more)
    provider.check()
    assert isinstance(provider, Expiring)
    provider.credentials_end()
    assert isinstance(provider, Examinable)
    provider.examine([bed.pool])
    machine = provider.launch(spec_for(bed, provider, 1))[0]
    provider.instances()
    provider.notices()
    if bed.console:
        with suppress(ProviderError):
            provider.console(machine.id)
    with suppress(ProviderError):
        provider._servers.fault(machine.id)
    provider.terminate([machine.id])


IMAGE = {"id": str(uuid.UUID(int=1)), "name": "worker", "status": "active",
         "created_at": "2026-01-01T00:00:00Z"}  # fmt: skip


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"networks": ("lan",), "security_groups": (GROUPS[0][0],), "key_name": "admin"},
        {"zones": ("nova",)},
        {"networks": ("auto",)},
    ],
)
@pytest.mark.parametrize("console", [True, False])
def test_whatever_is_let_through_is_used(
    bed: GatedBed, more: dict[str, object], *, console: bool
) -> None:
    bed.console = console
    live(bed, **more)
    assert bed.used == bed.rules


def test_an_image_by_its_id_needs_no_list_of_images(bed: GatedBed) -> None:
    bed.world.images = [IMAGE]
    live(bed, image=IMAGE["id"])
    assert ("image", "GET", "/v2/images") not in bed.rules
    assert bed.used == bed.rules


def test_an_image_that_is_looked_for_is_found_in_the_list(bed: GatedBed) -> None:
    bed.world.images = [IMAGE]
    bed.pool = replace(bed.pool, image=ImageChoice(name="work*"))
    live(bed)
    assert ("image", "GET", "/v2/images") in bed.used


def test_the_watchdog_may_see_and_end_and_nothing_else(
    bed: GatedBed, stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = bed.open()
    machine = provider.launch(spec_for(bed, provider, 1))[0]
    bed.rules.clear()
    bed.used.clear()
    bed.holder = Holder.WATCHDOG
    dog = bed.open()
    assert [m.id for m in dog.instances()] == [machine.id]
    dog._servers.fault(machine.id)
    dog.terminate([machine.id])
    assert not bed.alive()
    assert bed.used == bed.rules


def test_whoever_uploads_images_may_do_that_and_nothing_else(bed: GatedBed, tmp_path: Path) -> None:
    bed.holder = Holder.IMAGES
    bed.open()
    store = open_images(bed.settings(), Cluster(name="site", uuid=UUID))
    file = image_file(image_at(tmp_path / "a.qcow2"), None, None)
    upload(store, file, lambda _: None)
    store.start_of(bed.pool)
    store.remove(store.images()[0])
    assert bed.used == bed.rules
