"""Microsoft's own clients make each call of ours against the emulated resource manager."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from azure.core import MatchConditions
from azure.core.credentials import AccessToken
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.core.pipeline.policies import SansIOHTTPPolicy
from msgspec.structs import replace
from providers.azure.bed import AzureBed

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.providers.azure import requests
from slurm_elastic.providers.azure.client import COMPUTE, SIZES, ArmApi
from slurm_elastic.sandbox.azure import schema, serve
from slurm_elastic.testing.contract import CLUSTER, first_offer, spec_for

GOLDEN = Path(__file__).parents[2] / "golden"


class Fixed:
    def get_token(self, *scopes: str, **more: Any) -> AccessToken:
        return AccessToken(serve.TOKEN, int(time.time()) + 3600)


class Bearer(SansIOHTTPPolicy):  # type: ignore[type-arg]
    """The SDK refuses to send a token by plain http, so a policy of ours writes the header."""

    def on_request(self, request: Any) -> None:
        request.http_request.headers["Authorization"] = f"Bearer {serve.TOKEN}"


def client(kind: type, bed: AzureBed) -> Any:
    return kind(
        Fixed(), serve.SUBSCRIPTION, base_url=bed.emulator.url, authentication_policy=Bearer(),
        polling_interval=0,
    )  # fmt: skip


@pytest.fixture
def compute(bed: AzureBed) -> Any:
    from azure.mgmt.compute import (
        ComputeManagementClient,
    )  # slow, and each process collects this file

    return client(ComputeManagementClient, bed)


def test_a_machine_is_created_seen_stopped_started_and_ended(bed: AzureBed, compute: Any) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 1)
    name = requests.vm_name(CLUSTER, spec, "az1")
    body = dict(requests.body(bed.settings(), CLUSTER, spec, "az1", (), time.time()))
    vms, group = compute.virtual_machines, serve.GROUP
    create = {"etag": "*", "match_condition": MatchConditions.IfMissing}
    made = vms.begin_create_or_update(group, name, body, **create).result()
    assert (made.name, made.properties.provisioning_state) == (name, "Succeeded")
    assert made.properties.storage_profile.os_disk.delete_option == "Delete"
    with pytest.raises(HttpResponseError) as caught:
        vms.begin_create_or_update(group, name, body, **create)
    assert caught.value.status_code == 412
    assert [vm.name for vm in vms.list(group)] == [name]
    assert [m.id for m in provider.instances()] == [name], "both read the same"
    vms.begin_update(group, name, {"tags": {**made.tags, "more": "yes"}}).result()
    vms.begin_deallocate(group, name).result()
    codes = [status.code for status in vms.instance_view(group, name).statuses]
    assert codes == ["ProvisioningState/succeeded", "PowerState/deallocated"]
    vms.begin_start(group, name).result()
    assert vms.get(group, name).tags["more"] == "yes"
    vms.begin_delete(group, name, force_deletion=True).result()
    with pytest.raises(ResourceNotFoundError):
        vms.get(group, name)
    assert bed.alive() == set()


def test_lists_of_several_pages_are_whole(bed: AzureBed, compute: Any) -> None:
    names = bed.crowd(25)
    bed.world.page = 10
    assert {vm.name for vm in compute.virtual_machines.list(serve.GROUP)} == names


def test_a_failed_operation_has_its_code(bed: AzureBed, compute: Any) -> None:
    bed.limit(0)
    bed.world.capacity_late = True
    provider = bed.open()
    spec = LaunchSpec(
        generation="g1", pool=bed.pool, nodes=("az1",), offer=first_offer(bed, provider)
    )
    body = dict(requests.body(bed.settings(), CLUSTER, spec, "az1", (), 1.0))
    with pytest.raises(HttpResponseError) as caught:
        compute.virtual_machines.begin_create_or_update(serve.GROUP, "az1-x", body).result()
    assert caught.value.error.code == "AllocationFailed"
    assert (
        compute.virtual_machines.get(serve.GROUP, "az1-x").properties.provisioning_state == "Failed"
    )


def test_cards_disks_sizes_and_quotas(bed: AzureBed, compute: Any) -> None:
    from azure.mgmt.network import NetworkManagementClient

    provider = bed.open()
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    bed.world.leaves_parts = True
    provider.terminate([machine.id])
    network = client(NetworkManagementClient, bed)
    (card,) = network.network_interfaces.list(serve.GROUP)
    assert card.tags["slurm-elastic:cluster"] == CLUSTER.uuid
    assert card.ip_configurations[0].private_ip_address == "10.0.0.5"
    network.network_interfaces.begin_delete(serve.GROUP, card.name).result()
    assert list(network.network_interfaces.list(serve.GROUP)) == []
    assert {row.name.value for row in compute.usage.list("westeurope")} >= {"cores"}


def test_requests_are_counted_and_none_was_refused_by_the_models(bed: AzureBed) -> None:
    provider = bed.open()
    machines = provider.launch(spec_for(bed, provider, 40))
    provider.stop([machines[0].id])
    print(f"{bed.world.validated} bodies checked by azure-mgmt-compute")
    assert schema.MODELS is not None
    assert bed.world.validated == 41
    assert bed.world.refused_by_schema == []


def test_the_version_that_we_send_is_the_version_of_the_models() -> None:
    from azure.mgmt.compute.operations import _operations as operations

    assert schema.version() == COMPUTE
    sizes = operations.build_resource_skus_list_request(subscription_id="s")
    assert f"api-version={SIZES}" in sizes.url


def test_the_emulator_refuses_versions_that_a_resource_lacks(bed: AzureBed) -> None:
    settings = bed.settings()
    compute = "/providers/Microsoft.Compute"
    api = ArmApi(settings)
    for method, path in (
        ("PUT", f"{settings.group_path}{compute}/virtualMachines/az1-1"),
        ("GET", f"/subscriptions/{settings.subscription}{compute}/skus"),
        ("GET", f"{settings.group_path}{compute}/galleries/g/images/i/versions/1.0.0"),
        ("GET", f"{settings.group_path}{compute}/disks"),
    ):
        with pytest.raises(ProviderError, match="API version '2024-07-01'"):
            api.call(method, path, "2024-07-01", {})


def test_doctor_reads_an_image_of_a_gallery(bed: AzureBed) -> None:
    gallery = f"{bed.settings().group_path}/providers/Microsoft.Compute/galleries/g"
    image = f"{gallery}/images/slurm/versions/1.0.0"
    found = {f.subject: f for f in bed.open(image=image).examine([bed.pool])}
    assert found[f"image {image}"].observed == "there"


def test_doctor_reads_the_image_of_each_pool_and_the_role_lets_it(bed: AzureBed) -> None:
    images = f"{bed.settings().group_path}/providers/Microsoft.Compute"
    newest, plain = f"{images}/galleries/g/images/slurm", f"{images}/images/missing"
    pools = [
        replace(bed.pool, name=f"p{n}", image=ImageChoice(id=id_))
        for n, id_ in enumerate((newest, plain, newest))
    ]
    found = [f for f in bed.open().examine([bed.pool, *pools]) if f.subject.startswith("image ")]
    assert [f.subject for f in found] == [
        f"image {bed.settings().image}", f"image {newest}", f"image {plain}",
    ]  # fmt: skip
    assert [f.level is FindingLevel.WRONG for f in found] == [False, False, True]
    actions = json.loads((GOLDEN / "iam-azure.json").read_text())["Actions"]
    assert "Microsoft.Compute/galleries/images/read" in actions
