"""Google's own client, for the calls that our provider makes, against our emulated Compute Engine."""

from __future__ import annotations

import uuid

import pytest
from emulated import GceControl
from providers.gcp.bed import ZONES, world

from slurm_elastic.sandbox.gce.world import PROJECT, REGION

ZONE = ZONES[0]
PLACE = {"project": PROJECT, "zone": ZONE}


@pytest.fixture(autouse=True, scope="module")
def _googles_client() -> None:
    """Imported by the first test: it takes a second, and each process collects this file."""
    global compute, exceptions, AnonymousCredentials
    missing = "google-cloud-compute is not here"
    compute = pytest.importorskip("google.cloud.compute_v1", reason=missing)
    from google.api_core import exceptions
    from google.auth.credentials import AnonymousCredentials


@pytest.fixture
def cloud(control: GceControl) -> GceControl:
    control.reset(world(anonymous=True))
    return control


def client(control: GceControl, name: str):
    transports = getattr(compute.services, name)
    rest = next(
        getattr(transports.transports, found)
        for found in dir(transports.transports)
        if found.endswith("RestTransport")
    )
    host = control.url.removeprefix("http://")
    transport = rest(host=host, url_scheme="http", credentials=AnonymousCredentials())
    found = next(n for n in dir(transports) if n.endswith("Client"))
    return getattr(transports, found)(transport=transport)


def bulk(*names: str):
    return compute.BulkInsertInstanceResource(
        count=len(names),
        min_count=1,
        per_instance_properties={
            name: compute.BulkInsertInstanceResourcePerInstanceProperties() for name in names
        },
        instance_properties=compute.InstanceProperties(
            machine_type="small",
            labels={"slurm-elastic-cluster": "one"},
            disks=[
                compute.AttachedDisk(
                    boot=True,
                    auto_delete=True,
                    initialize_params=compute.AttachedDiskInitializeParams(
                        source_image=f"projects/{PROJECT}/global/images/worker-1"
                    ),
                )
            ],
            scheduling=compute.Scheduling(
                automatic_restart=False, provisioning_model="SPOT",
                instance_termination_action="DELETE",
            ),
        ),
    )  # fmt: skip


def test_machines_are_made_listed_stopped_started_and_deleted(cloud: GceControl) -> None:
    instances = client(cloud, "instances")
    operations = client(cloud, "zone_operations")
    token = str(uuid.uuid4())
    request = {**PLACE, "request_id": token}
    body = bulk("gc1-0000000001", "gc2-0000000002")
    made = instances.bulk_insert_unary(
        compute.BulkInsertInstanceRequest(bulk_insert_instance_resource_resource=body, **request)
    )
    done = operations.get(**PLACE, operation=made.name)
    assert done.status == compute.Operation.Status.DONE
    (place,) = done.instances_bulk_insert_operation_metadata.per_location_status.values()
    assert (place.target_vm_count, place.created_vm_count) == (2, 2)
    of_group = f'operationGroupId = "{done.operation_group_id}"'
    members = operations.list(request=compute.ListZoneOperationsRequest(**PLACE, filter=of_group))
    assert {o.operation_type for o in members} == {"bulkInsert", "insert"}
    again = instances.bulk_insert_unary(
        compute.BulkInsertInstanceRequest(bulk_insert_instance_resource_resource=body, **request)
    )
    assert again.name == made.name

    listed = instances.list(
        request=compute.ListInstancesRequest(
            **PLACE, filter='labels.slurm-elastic-cluster = "one"', max_results=1
        )
    )
    assert sorted(m.name for m in listed) == ["gc1-0000000001", "gc2-0000000002"]
    one = {**PLACE, "instance": "gc1-0000000001"}
    assert instances.get(**one).labels == {"slurm-elastic-cluster": "one"}
    instances.stop_unary(**one)
    assert instances.get(**one).status == "TERMINATED"
    instances.start_unary(**one)
    assert instances.get(**one).status == "RUNNING"
    assert "gc1" in instances.get_serial_port_output(**one).contents
    instances.delete_unary(**one)
    with pytest.raises(exceptions.NotFound):
        instances.get(**one)
    assert cloud.state().violations == ()


def test_a_stock_out_is_an_error_of_the_operation(cloud: GceControl) -> None:
    cloud.capacity(0)
    made = client(cloud, "instances").bulk_insert_unary(
        compute.BulkInsertInstanceRequest(
            bulk_insert_instance_resource_resource=bulk("gc1-0000000001"), **PLACE
        )
    )
    done = client(cloud, "zone_operations").get(**PLACE, operation=made.name)
    assert [e.code for e in done.error.errors] == ["ZONE_RESOURCE_POOL_EXHAUSTED"]


def test_types_region_image_and_subnetwork_are_read(cloud: GceControl) -> None:
    types = client(cloud, "machine_types")
    assert types.get(**PLACE, machine_type="small").guest_cpus == 2
    assert {t.name for t in types.list(**PLACE)} == {"small", "big", "cards"}
    region = client(cloud, "regions").get(project=PROJECT, region=REGION)
    assert {q.metric for q in region.quotas} == {"CPUS", "PREEMPTIBLE_CPUS"}
    images = client(cloud, "images")
    assert images.get_from_family(project=PROJECT, family="worker").name == "worker-2"
    assert images.get(project=PROJECT, image="worker-1").id == 5000000000000000001
    assert len(list(images.list(project=PROJECT))) == 2
    network = client(cloud, "subnetworks").get(project=PROJECT, region=REGION, subnetwork="default")
    assert network.ip_cidr_range == "10.128.0.0/16"
    assert cloud.state().violations == ()
