"""The emulated OpenNebula: the manners of oned that clients stumble over, without recordings."""

from __future__ import annotations

import xmlrpc.client
from xml.etree import ElementTree

import pytest

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.nebula.control import Place
from slurm_elastic.sandbox.nebula.place import place
from slurm_elastic.sandbox.nebula.vm_template import ParseError, parse
from slurm_elastic.sandbox.nebula.world import OneHost, OnePace, OneUser, OneWorld, vm_template
from slurm_elastic.sandbox.opennebula import OneFront, default_world, main

pytestmark = pytest.mark.usefixtures("guarded")

ADMIN, ALICE = "oneadmin:a", "alice:b"
ALL = (-2, -1, -1, -1)


class Oned:
    """A front end with a clock in our hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        world = OneWorld(
            users=[
                OneUser(id=0, name="oneadmin", password="a", gid=0, group="oneadmin"),
                OneUser(id=2, name="alice", password="b"),
            ],
            templates=[vm_template(0, "worker", 1, 512)],
            hosts=[OneHost(id=0, name="h", cpu=200)],
            pace=OnePace(schedule=10, boot=4, shutdown=2),
        )
        self.front = OneFront(world, clock=lambda: self.now)

    def call(self, session: str, method: str, *args: object) -> list:
        body = xmlrpc.client.dumps((session, *args), method).encode()
        return xmlrpc.client.loads(self.front.rpc(body).body)[0][0]

    def start(self, name: str = "x", extra: str = "", hold: bool = False) -> int:
        return self.call(ALICE, "one.template.instantiate", 0, name, hold, extra)[1]

    def vm(self, number: int) -> ElementTree.Element:
        return ElementTree.fromstring(self.call(ALICE, "one.vm.info", number)[1])

    def state(self, number: int) -> tuple[str | None, str | None]:
        vm = self.vm(number)
        return vm.findtext("STATE"), vm.findtext("LCM_STATE")


@pytest.fixture
def oned() -> Oned:
    return Oned()


def test_an_answer_has_three_elements_and_a_refusal_five(oned: Oned) -> None:
    assert oned.call(ALICE, "one.system.version") == [True, "6.10.5", 0]
    refused = oned.call(ALICE, "one.vm.info", 7)
    assert refused == [False, "[one.vm.info] Error getting virtual machine [7].", 1024, 7, -1]


def test_the_session_comes_before_the_object(oned: Oned) -> None:
    assert oned.call("alice:wrong", "one.vm.info", 7)[2] == 256
    assert oned.call("nocolon", "one.vm.info", 7)[2] == 256


@pytest.mark.parametrize(
    ("method", "args", "code"),
    [
        ("one.vm.nosuch", (1,), -506),
        ("one.vm.info", (), -501),
        ("one.vm.info", ("1",), -501),
        ("one.vmpool.info", (-2, -1, -1), -501),
        ("one.template.instantiate", (0,), -501),
    ],
)
def test_misuse_of_the_protocol_is_a_fault(
    oned: Oned, method: str, args: tuple[object, ...], code: int
) -> None:
    with pytest.raises(xmlrpc.client.Fault) as caught:
        oned.call(ALICE, method, *args)
    assert caught.value.faultCode == code


def test_a_machine_goes_its_way(oned: Oned) -> None:
    number = oned.start()
    seen = {}
    for second in (0, 9, 10, 12, 14):
        oned.now = 1000.0 + second
        seen[second] = oned.state(number)
    assert seen == {0: ("1", "0"), 9: ("1", "0"), 10: ("3", "1"), 12: ("3", "2"), 14: ("3", "3")}
    assert oned.call(ALICE, "one.vm.action", "terminate-hard", number) == [True, number, 0]
    assert oned.state(number) == ("3", "3"), "oned answers before the state changes"
    oned.now += 0.5
    assert oned.state(number) == ("3", "12")
    oned.now += 1
    assert oned.state(number) == ("3", "11")
    oned.now += 1
    assert oned.state(number) == ("6", "0")
    assert oned.call(ALICE, "one.vm.action", "terminate-hard", number)[0] is True
    assert "<VM>" not in oned.call(ALICE, "one.vmpool.info", *ALL)[1]
    assert "<VM>" in oned.call(ALICE, "one.vmpool.info", -2, -1, -1, -2)[1]


def test_a_booting_machine_refuses_to_end(oned: Oned) -> None:
    number = oned.start()
    oned.now += 12
    refused = oned.call(ALICE, "one.vm.action", "terminate-hard", number)
    assert refused[1].endswith(f"Could not terminate VM {number}, wrong state BOOT.")
    assert refused[2] == 2048


def test_capacity_is_never_checked_by_the_call_and_told_by_the_scheduler(oned: Oned) -> None:
    numbers = [oned.start() for _ in range(3)]
    oned.now += 20
    assert [oned.state(n)[0] for n in numbers] == ["3", "3", "1"]
    message = oned.vm(numbers[2]).findtext("USER_TEMPLATE/SCHED_MESSAGE") or ""
    assert "No host with enough capacity" in message
    oned.call(ALICE, "one.vm.action", "terminate-hard", numbers[0])
    oned.now += 20
    assert oned.state(numbers[2])[0] == "3"


def test_tags_are_in_the_extended_list_only(oned: Oned) -> None:
    oned.start(extra='NODE="node-seven"\nLABELS="a,b"\n')
    short = oned.call(ALICE, "one.vmpool.info", *ALL)[1]
    full = oned.call(ALICE, "one.vmpool.infoextended", *ALL)[1]
    assert ("node-seven" in short, "a,b" in short) == (False, True)
    assert "node-seven" in full


def test_lists_are_newest_first_and_come_in_pages(oned: Oned) -> None:
    for _ in range(5):
        oned.start(hold=True)

    def ids(start: int, end: int) -> list[str | None]:
        pool = oned.call(ALICE, "one.vmpool.info", -3, start, end, -1)[1]
        return [vm.findtext("ID") for vm in ElementTree.fromstring(pool)]

    assert ids(-1, -1) == ["4", "3", "2", "1", "0"]
    assert (ids(0, -2), ids(2, -2), ids(4, -2)) == (["4", "3"], ["2", "1"], ["0"])
    assert ids(1, 3) == ["3", "2", "1"]


def test_a_context_replaces_the_templates_and_variables_vanish(oned: Oned) -> None:
    plain = oned.vm(oned.start()).find("TEMPLATE/CONTEXT")
    assert plain is not None
    assert plain.find("SSH_PUBLIC_KEY") is not None
    own = oned.start(extra='CONTEXT=[NETWORK="YES",START_SCRIPT="echo $HOME!"]')
    context = oned.vm(own).find("TEMPLATE/CONTEXT")
    assert context is not None
    assert context.find("SSH_PUBLIC_KEY") is None
    assert context.findtext("START_SCRIPT") == "echo !"
    assert context.findtext("ETH0_IP") == "10.0.0.11"


def test_a_failed_order_takes_neither_number_nor_address(oned: Oned) -> None:
    refused = oned.call(ALICE, "one.template.instantiate", 0, "a/b", False, "")
    assert "Invalid NAME, char '/' is not allowed" in refused[1]
    number = oned.start()
    assert number == 0
    assert oned.vm(number).findtext("TEMPLATE/NIC/IP") == "10.0.0.10"


def test_two_cards_of_a_machine_have_two_addresses(oned: Oned) -> None:
    number = oned.start(extra='NIC=[NETWORK_ID="0"]\nNIC=[NETWORK_ID="0"]\n')
    assert [n.text for n in oned.vm(number).iterfind("TEMPLATE/NIC/IP")] == [
        "10.0.0.10",
        "10.0.0.11",
    ]


def test_hosts_are_the_administrators_to_see(oned: Oned) -> None:
    assert oned.call(ALICE, "one.hostpool.info")[1] == "<HOST_POOL></HOST_POOL>"
    assert "<HOST>" in oned.call(ADMIN, "one.hostpool.info")[1]


def test_machines_of_others_are_out_of_reach(oned: Oned) -> None:
    place(oned.front.cloud, Place(id=5, template=0), oned.now)
    assert oned.call(ALICE, "one.vm.action", "terminate-hard", 5)[2] == 512
    assert "<VM>" not in oned.call(ALICE, "one.vmpool.info", *ALL)[1]


def test_a_fault_strikes_its_method_only(oned: Oned) -> None:
    oned.front.faults.add(Fault(kind=FaultKind.QUOTA, action="one.template.*", count=1))
    assert "VMS quota" in oned.call(ALICE, "one.template.instantiate", 0, "x", False, "")[1]
    assert oned.call(ALICE, "one.template.instantiate", 0, "x", False, "")[0] is True


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('A="1"\nb="2"\n', {"A": ["1"], "B": ["2"]}),
        ('A="say \\"hi\\"\nthere"', {"A": ['say "hi"\nthere']}),
        ('V=[K="1",l="2"]', {"V": [{"K": "1", "L": "2"}]}),
        ("A=plain\n", {"A": ["plain"]}),
        ("<X><A><![CDATA[<&>]]></A><V><K>1</K></V></X>", {"A": ["<&>"], "V": [{"K": "1"}]}),
        ("", {}),
    ],
)
def test_templates_are_read(text: str, wanted: dict[str, object]) -> None:
    assert parse(text) == wanted


@pytest.mark.parametrize(
    "text", ["a-b=1", 'A="x "y""', 'V=[K="1"', "<A>", "<A><![CDATA[]]>]]></A>"]
)
def test_what_is_no_template_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse(text)


def test_a_wrong_order_is_told_in_a_sentence(oned: Oned) -> None:
    for method, name, body in (("GET", "x", b""), ("POST", "pace", b"["), ("POST", "place", b"{}")):
        answer = oned.front.control(method, name, body)
        assert answer.status == 400
    with pytest.raises(SandboxError, match="no such user"):
        place(oned.front.cloud, Place(id=1, uid=77), oned.now)


def test_a_world_that_cannot_be_read_ends_the_program(tmp_path, capsys) -> None:
    assert main(["--dir", str(tmp_path), "--world", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err
    assert default_world().templates[0].template["CPU"] == ["2"]
