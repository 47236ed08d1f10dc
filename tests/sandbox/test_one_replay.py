"""The emulated OpenNebula answers recorded requests as the real oned (6.10.5) did.

The recordings are not part of the repository: they are looked for beside the data directory, or in
``../shared/research`` beside the repository; elsewhere these tests are skipped. Tests that do not
need them are in test_opennebula.py.
"""

from __future__ import annotations

import os
import xmlrpc.client
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from needs import not_installed

from slurm_elastic.sandbox.nebula.api import METHODS
from slurm_elastic.sandbox.nebula.control import Place
from slurm_elastic.sandbox.nebula.place import place
from slurm_elastic.sandbox.nebula.world import Net, OneUser, OneWorld, VmTemplate
from slurm_elastic.sandbox.opennebula import OneFront

ROOT = Path(__file__).parents[2]
NOW = 1795145700.0
RIGHT = {"oneadmin": "opennebula-test", "alice": "secretpw1"}


def _samples() -> Path:
    data = os.environ.get("SLURM_ELASTIC_DATA")
    research = Path(data).parent / "research" if data else ROOT.parent / "shared" / "research"
    return research / "opennebula-samples"


SAMPLES = _samples()
NAMES = sorted(p.name.removesuffix(".req.xml") for p in SAMPLES.glob("*.req.xml"))
if not NAMES:
    reason = "no recorded answers of oned (../research/opennebula-samples of $SLURM_ELASTIC_DATA)"
    pytest.skip(reason, allow_module_level=True)


def request(name: str) -> bytes:
    return (SAMPLES / f"{name}.req.xml").read_bytes()


def recorded(name: str) -> bytes:
    return (SAMPLES / f"{name}.resp.xml").read_bytes()


def method_of(name: str) -> str:
    return xmlrpc.client.loads(request(name))[1] or ""


def emulated(name: str) -> bool:
    """Site administration (hosts, images, networks) is no part of the stand-in; a method that oned
    does not have either is.
    """
    return method_of(name) in METHODS or name in ("fault.nomethod", "template.instantiatemultiple")


REPLAYED = [name for name in NAMES if emulated(name)]


def world() -> OneWorld:
    worker: dict[str, list[str | dict[str, str]]] = {
        "CONTEXT": [
            {
                "NETWORK": "YES",
                "SSH_PUBLIC_KEY": "$USER[SSH_PUBLIC_KEY]",
                "START_SCRIPT": "echo from-template",
            }
        ],
        "CPU": ["0.1"],
        "DISK": [{"IMAGE_ID": "0"}],
        "MEMORY": ["64"],
        "NIC": [{"NETWORK_ID": "0"}],
        "TAG_FROM_TEMPLATE": ["t1"],
        "VCPU": ["1"],
    }
    small: dict[str, list[str | dict[str, str]]] = {"CPU": ["0.1"], "MEMORY": ["64"]}
    return OneWorld(
        users=[
            OneUser(id=0, name="oneadmin", password=RIGHT["oneadmin"], gid=0, group="oneadmin"),
            OneUser(
                id=2,
                name="alice",
                password=RIGHT["alice"],
                quota={"VMS": -2, "CPU": -2, "MEMORY": -2},
                leases={0: -2},
            ),
        ],
        templates=[
            VmTemplate(id=0, name="worker", template=worker),
            VmTemplate(id=1, name="nodisk", template=small),
        ],
        nets=[Net(id=0, name="lan"), Net(id=1, name="tiny", size=0)],
    )


def front(*machines: Place) -> OneFront:
    made = OneFront(world(), clock=lambda: NOW)
    for machine in machines:
        place(made.cloud, machine, NOW)
    return made


def alices(number: int, state: tuple[int, int] = (2, 0), **more: object) -> Place:
    return Place(id=number, uid=2, state=state[0], lcm=state[1], template=1, **more)


def ours(number: int, state: tuple[int, int]) -> Place:
    host = 0 if state[0] == 3 else None
    return Place(id=number, state=state[0], lcm=state[1], template=1, host=host)


def quota(**values: object) -> Callable[[OneFront], None]:
    def change(made: OneFront) -> None:
        for key, value in values.items():
            setattr(made.cloud.world.users[1], key, value)

    return change


def group_quota(made: OneFront) -> None:
    made.cloud.world.groups[1] = {"VMS": 2}


def private(made: OneFront) -> None:
    made.cloud.world.templates[0].everybody = False


MACHINES: dict[str, Sequence[Place]] = {
    "template.instantiate.quota-VMS": [alices(1), alices(2)],
    "template.instantiate.quota-MEMORY": [alices(1), alices(2)],
    "template.instantiate.quota-CPU": [alices(1), alices(2)],
    "template.instantiate.groupquota-VMS": [alices(1), alices(2)],
    "template.instantiate.quota-LEASES": [Place(id=1, uid=2, state=2, lcm=0, template=0)],
    "template.instantiate.ipinuse": [Place(id=0, template=0, host=0)],
    "vm.action.badstate": [ours(4, (4, 0))],
    "vm.action.locked": [alices(9, locked=True)],
    "vm.action.noauthz": [ours(8, (2, 0))],
    "vm.action.poweroff-hard": [ours(4, (3, 3))],
    "vm.action.poweroff": [ours(4, (3, 3))],
    "vm.action.reboot-hard": [ours(4, (3, 3))],
    "vm.action.reboot": [ours(4, (3, 3))],
    "vm.action.resume": [ours(4, (5, 0))],
    "vm.action.stop": [ours(4, (3, 3))],
    "vm.action.suspend": [ours(4, (3, 3))],
    "vm.action.terminate-hard.BOOT.nonadmin": [alices(272, (3, 2), host=0)],
    "vm.action.terminate-hard.HOLD": [ours(3, (2, 0))],
    "vm.action.terminate-hard.on-BOOT": [ours(264, (3, 2))],
    "vm.action.terminate-hard.on-BOOT_FAILURE": [ours(263, (3, 36))],
    "vm.action.terminate-hard.on-DONE": [ours(1, (6, 0))],
    "vm.action.terminate-hard.on-SHUTDOWN": [ours(270, (3, 12))],
    "vm.action.terminate-hard": [ours(1, (3, 3))],
    "vm.action.terminate.PENDING": [ours(265, (1, 0))],
    "vm.action.terminate": [ours(2, (3, 3))],
    "vm.action.unknown": [ours(4, (3, 3))],
    "vm.deploy.notallowed": [alices(5)],
    "vm.deploy": [ours(2, (2, 0))],
    "vm.info.noauthz": [ours(8, (2, 0))],
    "vm.lock": [alices(9)],
    "vm.recover.badop": [ours(4, (3, 3))],
    "vm.recover.delete.BOOT": [ours(264, (3, 2))],
    "vm.recover.delete.BOOT_FAILURE": [ours(263, (3, 36))],
    "vm.recover.delete": [ours(4, (4, 0))],
    "vm.recover.done": [ours(4, (6, 0))],
    "vm.recover.nonadmin": [alices(272, (3, 2), host=0)],
    "vm.recover.retry": [ours(263, (6, 0))],
    "vm.rename": [ours(0, (3, 3))],
    "vm.unlock": [alices(9, locked=True)],
    "vm.update.append": [ours(4, (4, 0))],
    "vm.update.replace": [ours(4, (4, 0))],
}
CHANGES: dict[str, Callable[[OneFront], None]] = {
    "template.instantiate.quota-VMS": quota(quota={"VMS": 2}),
    "template.instantiate.quota-MEMORY": quota(quota={"MEMORY": 150}),
    "template.instantiate.quota-CPU": quota(quota={"CPU": 0.2}),
    "template.instantiate.quota-LEASES": quota(leases={0: 1}),
    "template.instantiate.groupquota-VMS": group_quota,
    "template.instantiate.noauthz": private,
    "image.allocate": lambda made: made.cloud.world.images.clear(),  # it was the first
}
# What the recordings have by what went before them: monitoring, tokens, devices of a host, and the
# quotas that a machine's image and a network add to an account.
BEYOND = ("/MONITORING/", "/LOGIN_TOKEN", "/PCI_DEVICES/", "/NUMA_NODES/", "/DATASTORES/",
          "/HOST/TEMPLATE/", "/IMAGE_QUOTA/")  # fmt: skip


@pytest.mark.parametrize("name", REPLAYED)
def test_a_recorded_request_gets_the_recorded_answer(name: str) -> None:
    wanted = recorded(name)
    machines = MACHINES.get(name, ()) or tuple(placed_from(name))
    made = front(*machines)
    CHANGES.get(name, lambda _: None)(made)
    if name in STARTED:
        made.cloud.next_id = array(wanted)[1]
    answer = made.rpc(request(name))
    assert answer.status == 200
    assert types(answer.body) == types(wanted)
    if b"<fault>" in wanted:
        assert fault(answer.body) == fault(wanted)
        return
    ours_, theirs = array(answer.body), array(wanted)
    if not (isinstance(theirs[1], str) and theirs[1].startswith("<")):
        assert ours_ == theirs
        return
    assert (ours_[0], ours_[2:]) == (theirs[0], theirs[2:])
    compare(ElementTree.fromstring(ours_[1]), ElementTree.fromstring(theirs[1]))


def test_most_recorded_requests_apply() -> None:
    """The others are site administration."""
    left_out = {method_of(name) for name in NAMES if name not in REPLAYED}
    assert left_out == {
        f"one.{what}"
        for what in (
            "datastore.allocate", "host.allocate", "host.info", "system.config",
            "template.allocate", "template.update", "user.allocate", "vn.allocate",
        )
        if any(method_of(name) == f"one.{what}" for name in NAMES)
    }  # fmt: skip
    assert len(REPLAYED) >= 100


STARTED = {
    name
    for name in REPLAYED
    if method_of(name) in ("one.template.instantiate", "one.vm.allocate")
    and b"<boolean>1" in recorded(name)
}


def array(body: bytes) -> list:
    return xmlrpc.client.loads(body)[0][0]


def fault(body: bytes) -> tuple[int, str]:
    with pytest.raises(xmlrpc.client.Fault) as caught:
        xmlrpc.client.loads(body)
    return caught.value.faultCode, caught.value.faultString


def types(body: bytes) -> list[str]:
    """The XML-RPC elements in their order: which types, how many."""
    return [element.tag for element in ElementTree.fromstring(body).iter()]


def compare(mine: ElementTree.Element, real: ElementTree.Element) -> None:
    assert mine.tag == real.tag
    if real.tag.endswith("_POOL") and real.tag != "USER_POOL":
        wanted = [child.findtext("ID") for child in real]
        assert [child.findtext("ID") for child in mine] == wanted
        for one, other in zip(mine, real, strict=True):
            assert paths(one) == paths(other), one.findtext("ID")
        return
    assert paths(mine) == paths(real)


def paths(root: ElementTree.Element) -> set[str]:
    def walk(element: ElementTree.Element, above: str) -> Iterator[str]:
        here = f"{above}/{element.tag}"
        yield here
        for child in element:
            yield from walk(child, here)

    found = walk(root, "")
    return {p for p in found if not any(b in f"{p}/" for b in BEYOND)}


def placed_from(name: str) -> Iterator[Place]:
    """The machines of a recorded answer, as they were."""
    extended = {"vmpool.info": "vmpool.infoextended",
                "vmpool.info.pending_sched_message": "vm.info.PENDING_nohost"}  # fmt: skip
    answer = recorded(extended.get(name, name))
    if b"<fault>" in answer or not isinstance(array(answer)[1], str):
        return
    text = array(answer)[1]
    if not text.startswith(("<VM>", "<VM_POOL>")):
        return
    for vm in ElementTree.fromstring(f"<ALL>{text}</ALL>").iter("VM"):
        if vm.find("TEMPLATE") is not None:
            yield as_it_was(vm)


def as_it_was(vm: ElementTree.Element) -> Place:
    template = vm.find("TEMPLATE")
    assert template is not None
    stored = template.findtext("TEMPLATE_ID")
    extra = ElementTree.Element("TEMPLATE")
    for key in ("CPU", "MEMORY", "VCPU"):
        if template.findtext(key) is not None:
            ElementTree.SubElement(extra, key).text = template.findtext(key)
    context = template.find("CONTEXT")
    if context is not None:
        copy = ElementTree.SubElement(extra, "CONTEXT")
        copy.extend(c for c in context if not c.tag.startswith(("ETH", "DISK_ID", "TARGET")))
    if stored is None:
        for nic in template.iter("NIC"):
            card = ElementTree.SubElement(extra, "NIC")
            ElementTree.SubElement(card, "NETWORK_ID").text = nic.findtext("NETWORK_ID")
    history = vm.find("HISTORY_RECORDS/HISTORY")
    return Place(
        id=int(vm.findtext("ID") or 0),
        name=vm.findtext("NAME") or "",
        uid=int(vm.findtext("UID") or 0),
        state=int(vm.findtext("STATE") or 0),
        lcm=int(vm.findtext("LCM_STATE") or 0),
        held=template.find("SUBMIT_ON_HOLD") is not None,
        template=None if stored is None else int(stored),
        extra=ElementTree.tostring(extra, encoding="unicode"),
        user_template={c.tag: c.text or "" for c in vm.iterfind("USER_TEMPLATE/*")},
        host=None if history is None else int(history.findtext("HID") or 0),
    )


def test_our_client_reads_what_was_recorded() -> None:
    bindings = pytest.importorskip("pyone", reason=not_installed("pyone")).bindings
    from slurm_elastic.providers.opennebula import capacity, convert

    def parsed(name: str) -> object:
        return bindings.parseString(array(recorded(name))[1].encode())

    vms = {v.id: v for v in map(convert.vm, parsed("vmpool.infoextended").VM)}
    assert vms[0].tags["LABELS"] == "myapp,blue"
    assert vms[5].address == "10.0.0.11"
    assert vms[11].address is None
    assert convert.vm(parsed("vm.info.2nics")).address == "10.0.0.10"
    failed = convert.vm(parsed("vm.info.BOOT_FAILURE"))
    assert (failed.never_up, failed.trouble) == (True, "DEPLOY: node00:fail:dummy")
    waiting = convert.vm(parsed("vm.info.PENDING_nohost"))
    assert waiting.trouble.startswith("Cannot dispatch VM: No host with enough capacity")
    need = capacity.need(parsed("template.info").TEMPLATE)
    assert need == capacity.Need(0.1, 64.0)
    assert capacity.host_room(parsed("hostpool.info").HOST, need) == 3 * 80
    assert capacity.host_room(parsed("hostpool.info.nonadmin").HOST, need) is None
    assert capacity.quotas(parsed("user.info.self")) == []
    part = capacity.parts(lambda *_: None, {}, need)
    assert capacity.quota_bounds(capacity.quotas(parsed("user.info")), part) == [
        (1, "the account's VMS quota is 2 and 1 are used")
    ]
    short = parsed("vmpool.info.pending_sched_message").VM
    big = capacity.Need(900.0, 64.0)
    assert capacity.stuck(short, 0, big).startswith("Cannot dispatch VM")
    assert (capacity.stuck(short, 0, need), capacity.stuck(short, 2, big)) == ("", "")
