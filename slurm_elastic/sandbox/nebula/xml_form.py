"""Writes the emulated OpenNebula's objects as XML, with the same elements as oned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from xml.sax.saxutils import escape

from slurm_elastic.sandbox.nebula.cloud import DONE, Cloud, OneVm, runs_of, used_amount
from slurm_elastic.sandbox.nebula.vm_template import Template, scalars, vectors
from slurm_elastic.sandbox.nebula.world import EmulatedImage, OneHost, OneUser, VmTemplate

_PERMISSIONS = tuple(f"{role}_{right}" for role in ("OWNER", "GROUP", "OTHER") for right in "UMA")
_NIC_SHORT = ("IP", "MAC", "NETWORK", "NETWORK_ID", "NIC_ID", "SECURITY_GROUPS")
_DISK_SHORT = ("DISK_ID", "DATASTORE", "DATASTORE_ID", "IMAGE", "IMAGE_ID", "SIZE", "TYPE", "CLONE",
               "CLONE_TARGET", "LN_TARGET", "DISK_SNAPSHOT_TOTAL_SIZE")  # fmt: skip
_QUOTAS = ("CPU", "MEMORY", "RUNNING_CPU", "RUNNING_MEMORY", "RUNNING_VMS", "SYSTEM_DISK_SIZE",
           "VMS")  # fmt: skip
_DEFAULT_QUOTAS = (
    "<DEFAULT_USER_QUOTAS><DATASTORE_QUOTA></DATASTORE_QUOTA><NETWORK_QUOTA></NETWORK_QUOTA>"
    "<VM_QUOTA></VM_QUOTA><IMAGE_QUOTA></IMAGE_QUOTA></DEFAULT_USER_QUOTAS>"
)
_TAGS_SHORT = ("LABELS", "ERROR", "USER_PRIORITY")


def pool(name: str, members: Iterable[str]) -> str:
    """Return a pool. An empty pool has an opening and a closing tag, as from oned."""
    return f"<{name}>{''.join(members)}</{name}>"


def vm_full(vm: OneVm) -> str:
    """Return a machine as in one.vm.info and the extended pools."""
    elements = [
        *_identity(vm.id, vm.owner, vm.name),
        _permissions(everybody=False),
        _life(vm),
        f"<PREV_STATE>{vm.state}</PREV_STATE><PREV_LCM_STATE>{vm.lcm}</PREV_LCM_STATE>",
        *_times(vm),
        "<MONITORING></MONITORING><SCHED_ACTIONS></SCHED_ACTIONS>",
        _template("TEMPLATE", vm.template),
        _template("USER_TEMPLATE", {k: [v] for k, v in vm.user_template.items()}),
        f"<HISTORY_RECORDS>{_history(vm)}</HISTORY_RECORDS>" if vm.host else "<HISTORY_RECORDS/>",
        "<BACKUPS><BACKUP_CONFIG/><BACKUP_IDS></BACKUP_IDS></BACKUPS>",
    ]
    return f"<VM>{''.join(elements)}</VM>"


def vm_short(vm: OneVm) -> str:
    """Return a machine as in one.vmpool.info, which contains only a few of oned's own tags."""
    plain = scalars(vm.template)
    sizes = "".join(f"<{k}>{escape(plain.get(k, ''))}</{k}>" for k in ("CPU", "MEMORY", "VCPU"))
    devices = [_selected("DISK", d, _DISK_SHORT) for d in vectors(vm.template, "DISK")]
    devices += [_selected("NIC", n, _NIC_SHORT) for n in vectors(vm.template, "NIC")]
    tags = sorted((k, v) for k, v in vm.user_template.items() if v)
    short_tags = ((k, v) for k, v in tags if k in _TAGS_SHORT or k.startswith("SCHED_"))
    inner = "".join(leaf(k, v) for k, v in short_tags)
    history = f"<HISTORY_RECORDS>{_history_short(vm)}</HISTORY_RECORDS>"
    elements = [
        *_identity(vm.id, vm.owner, vm.name),
        _life(vm),
        *_times(vm),
        f"<TEMPLATE>{sizes}{''.join(devices)}</TEMPLATE><MONITORING/>",
        f"<USER_TEMPLATE>{inner}</USER_TEMPLATE>" if inner else "<USER_TEMPLATE/>",
        history if vm.host else "<HISTORY_RECORDS/>",
    ]
    return f"<VM>{''.join(elements)}</VM>"


def template(record: VmTemplate, owner: OneUser) -> str:
    """Return a VM template."""
    elements = [
        *_identity(record.id, owner, record.name),
        _permissions(everybody=record.everybody),
        "<REGTIME>1795145306</REGTIME>",
        _template("TEMPLATE", record.values),
    ]
    return f"<VMTEMPLATE>{''.join(elements)}</VMTEMPLATE>"


def image(record: EmulatedImage, owner: OneUser) -> str:
    """Return an image. It follows the schema (image.xsd), because there is no recording of one."""
    inner = "".join(leaf(k, v) for k, v in sorted(record.template.items()))
    elements = [
        *_identity(record.id, owner, record.name),
        _permissions(everybody=record.everybody),
        f"<TYPE>{record.type}</TYPE><DISK_TYPE>0</DISK_TYPE>",
        f"<PERSISTENT>{int(record.persistent)}</PERSISTENT><REGTIME>{record.created}</REGTIME>",
        leaf("SOURCE", f"dummy_path_{record.id}") + leaf("PATH", record.path),
        f"{leaf('FORMAT', 'dummy_format')}<FS></FS><SIZE>{record.size}</SIZE>",
        f"<STATE>{record.state}</STATE><PREV_STATE>{record.state}</PREV_STATE>",
        "<RUNNING_VMS>0</RUNNING_VMS><CLONING_OPS>0</CLONING_OPS><CLONING_ID>-1</CLONING_ID>",
        "<TARGET_SNAPSHOT>-1</TARGET_SNAPSHOT>",
        "<DATASTORE_ID>100</DATASTORE_ID><DATASTORE>dummyimg</DATASTORE>",
        "<VMS></VMS><CLONES></CLONES><APP_CLONES></APP_CLONES>",
        f"<TEMPLATE>{inner}</TEMPLATE><SNAPSHOTS></SNAPSHOTS>",
    ]
    return f"<IMAGE>{''.join(elements)}</IMAGE>"


def host(record: OneHost, cloud: Cloud) -> str:
    """Return a host, without its devices and NUMA nodes."""
    cpu, memory = cloud.host_use(record)
    vm_ids = [vm.id for vm in cloud.living() if vm.host is record]
    share = {
        "MEM_USAGE": int(memory),
        "CPU_USAGE": round(cpu),
        "TOTAL_MEM": record.memory,
        "TOTAL_CPU": record.cpu,
        "MAX_MEM": record.memory,
        "MAX_CPU": record.cpu,
        "RUNNING_VMS": len(vm_ids),
        "VMS_THREAD": 1,
    }
    ids = "".join(f"<ID>{number}</ID>" for number in vm_ids)
    return (
        f"<HOST><ID>{record.id}</ID><NAME>{escape(record.name)}</NAME>"
        f"<STATE>{record.state}</STATE><PREV_STATE>2</PREV_STATE><IM_MAD><![CDATA[dummy]]></IM_MAD>"
        "<VM_MAD><![CDATA[dummy]]></VM_MAD><CLUSTER_ID>0</CLUSTER_ID><CLUSTER>default</CLUSTER>"
        f"<HOST_SHARE>{''.join(f'<{k}>{v}</{k}>' for k, v in share.items())}"
        "<DATASTORES></DATASTORES><PCI_DEVICES></PCI_DEVICES><NUMA_NODES></NUMA_NODES></HOST_SHARE>"
        f"<VMS>{ids}</VMS><TEMPLATE></TEMPLATE><MONITORING></MONITORING></HOST>"
    )


def user(record: OneUser, cloud: Cloud) -> str:
    """Return an account with its quotas and their defaults."""
    return f"<USER>{_account(record)}{_quotas(record, cloud)}{_DEFAULT_QUOTAS}</USER>"


def users(records: Iterable[OneUser], cloud: Cloud) -> str:
    """Return the pool of users. Quotas stand beside the accounts, and not within them."""
    members = "".join(
        f"<USER>{_account(record)}</USER>"
        f"<QUOTAS><ID>{record.id}</ID>{_quotas(record, cloud)}</QUOTAS>"
        for record in records
    )
    return f"<USER_POOL>{members}{_DEFAULT_QUOTAS}</USER_POOL>"


def leaf(name: str, value: str) -> str:
    """Return an element with its value in CDATA, as oned writes it."""
    return f"<{name}><![CDATA[{value}]]></{name}>"


def _account(record: OneUser) -> str:
    return (
        f"<ID>{record.id}</ID><GID>{record.gid}</GID><GROUPS><ID>{record.gid}</ID></GROUPS>"
        f"<GNAME>{escape(record.group)}</GNAME><NAME>{escape(record.name)}</NAME>"
        f"{leaf('PASSWORD', '0' * 64)}{leaf('AUTH_DRIVER', 'core')}<ENABLED>1</ENABLED>"
        f"<TEMPLATE>{leaf('TOKEN_PASSWORD', '0' * 64)}</TEMPLATE>"
    )


def _quotas(record: OneUser, cloud: Cloud) -> str:
    user_vms = [vm for vm in cloud.living() if vm.owner.id == record.id]
    nets = "".join(
        f"<NETWORK>{leaf('ID', str(n))}{leaf('LEASES', str(limit))}"
        f"{leaf('LEASES_USED', str(sum(len(vm.addresses) for vm in user_vms)))}</NETWORK>"
        for n, limit in record.leases.items()
    )
    images = "".join(
        f"<IMAGE>{leaf('ID', str(n))}{leaf('RVMS', str(limit))}"
        f"{leaf('RVMS_USED', str(runs_of(user_vms, n)))}</IMAGE>"
        for n, limit in record.runs.items()
    )
    return (
        f"<DATASTORE_QUOTA></DATASTORE_QUOTA><NETWORK_QUOTA>{nets}</NETWORK_QUOTA>"
        f"<VM_QUOTA>{_vm_quota(record.quota, user_vms, record.stale)}</VM_QUOTA>"
        f"<IMAGE_QUOTA>{images}</IMAGE_QUOTA>"
    )


def group(number: int, name: str, cloud: Cloud) -> str:
    """Return a group with its quotas and their defaults."""
    group_vms = [vm for vm in cloud.living() if vm.owner.gid == number]
    quota = _vm_quota(cloud.world.groups.get(number, {}), group_vms)
    members = "".join(f"<ID>{u.id}</ID>" for u in cloud.world.users if u.gid == number)
    return (
        f"<GROUP><ID>{number}</ID><NAME>{escape(name)}</NAME><TEMPLATE></TEMPLATE>"
        f"<USERS>{members}</USERS><ADMINS></ADMINS><DATASTORE_QUOTA></DATASTORE_QUOTA>"
        f"<NETWORK_QUOTA></NETWORK_QUOTA><VM_QUOTA>{quota}</VM_QUOTA><IMAGE_QUOTA></IMAGE_QUOTA>"
        f"{_DEFAULT_QUOTAS.replace('USER', 'GROUP')}</GROUP>"
    )


def _vm_quota(
    quota: Mapping[str, float], vms: Sequence[OneVm], stale: Mapping[str, float] | None = None
) -> str:
    if not quota:
        return ""
    values: dict[str, str] = {}
    for key in _QUOTAS:
        values[key] = f"{quota.get(key, -1):g}"
        values[f"{key}_USED"] = f"{used_amount(vms, key) + (stale or {}).get(key, 0):g}"
    return "<VM>" + "".join(leaf(k, v) for k, v in values.items()) + "</VM>"


def _identity(number: int, owner: OneUser, name: str) -> list[str]:
    return [
        f"<ID>{number}</ID><UID>{owner.id}</UID><GID>{owner.gid}</GID>",
        f"<UNAME>{escape(owner.name)}</UNAME><GNAME>{escape(owner.group)}</GNAME>",
        f"<NAME>{escape(name)}</NAME>",
    ]


def _permissions(*, everybody: bool) -> str:
    granted = {"OWNER_U", "OWNER_M"} | ({"GROUP_U", "OTHER_U"} if everybody else set())
    inner = "".join(f"<{name}>{int(name in granted)}</{name}>" for name in _PERMISSIONS)
    return f"<PERMISSIONS>{inner}</PERMISSIONS>"


def _life(vm: OneVm) -> str:
    return f"<LAST_POLL>0</LAST_POLL><STATE>{vm.state}</STATE><LCM_STATE>{vm.lcm}</LCM_STATE>"


def _times(vm: OneVm) -> list[str]:
    deploy = f"{vm.host.name}:{vm.name}:dummy" if vm.host else ""
    return [
        f"<RESCHED>0</RESCHED><STIME>{int(vm.began)}</STIME><ETIME>{int(vm.ended)}</ETIME>",
        f"<DEPLOY_ID>{escape(deploy)}</DEPLOY_ID>",
    ]


def _template(name: str, values: Template) -> str:
    inner = ""
    for key in sorted(values):
        for value in values[key]:
            if isinstance(value, str):
                inner += leaf(key, value)
            else:
                inner += f"<{key}>{''.join(leaf(k, v) for k, v in sorted(value.items()))}</{key}>"
    return f"<{name}>{inner}</{name}>"


def _selected(name: str, values: Mapping[str, str], keys: Sequence[str]) -> str:
    return f"<{name}>{''.join(leaf(k, values[k]) for k in keys if k in values)}</{name}>"


def _history(vm: OneVm) -> str:
    start, end = int(vm.deployed), int(vm.ended)
    ended = end if vm.state == DONE else 0
    actor = vm.owner.id if vm.state == DONE else -1
    return (
        f"<HISTORY><OID>{vm.id}</OID><SEQ>0</SEQ>{_place(vm)}"
        f"<STIME>{start}</STIME><ETIME>{ended}</ETIME>"
        f"{leaf('VM_MAD', 'dummy')}{leaf('TM_MAD', 'dummy')}"
        f"<DS_ID>101</DS_ID><PSTIME>{start}</PSTIME><PETIME>{start}</PETIME>"
        f"<RSTIME>{start}</RSTIME><RETIME>{ended}</RETIME>"
        f"<ESTIME>{ended}</ESTIME><EETIME>{ended}</EETIME><ACTION>{vm.action}</ACTION>"
        f"<UID>{actor}</UID><GID>{actor}</GID><REQUEST_ID>{actor}</REQUEST_ID></HISTORY>"
    )


def _history_short(vm: OneVm) -> str:
    return (
        f"<HISTORY><OID>{vm.id}</OID><SEQ>0</SEQ>{_place(vm)}<DS_ID>101</DS_ID>"
        f"{leaf('VM_MAD', 'dummy')}{leaf('TM_MAD', 'dummy')}"
        f"{leaf('ACTION', str(vm.action))}</HISTORY>"
    )


def _place(vm: OneVm) -> str:
    name, number = (vm.host.name, vm.host.id) if vm.host else ("", -1)
    return f"<HOSTNAME>{escape(name)}</HOSTNAME><HID>{number}</HID><CID>0</CID>"
