"""The agent: what it starts, what it refuses, and what survives its death."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from patience import eventually, patience

from slurm_elastic.machine.local import local_processes
from slurm_elastic.machine.local.agent import LocalAgent
from slurm_elastic.machine.local.driver import AgentSettings
from slurm_elastic.machine.local.records import read_records
from slurm_elastic.model.cluster import InstanceState

pytestmark = pytest.mark.usefixtures("guarded")

CLUSTER = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def tmp_path():
    """Unlike pytest's own one that other users can reach into."""
    path = Path(tempfile.mkdtemp(prefix="se-agent-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def settings(tmp_path):
    slurmd = tmp_path / "slurmd"
    slurmd.write_text(f'#!/bin/sh\necho "$2" >> {tmp_path}/started\nexec sleep 1000\n')
    slurmd.chmod(0o755)
    return AgentSettings(
        nodes=frozenset({"n1", "n2", "n3"}),
        directory=tmp_path / "machines",
        slurm_conf=str(tmp_path / "slurm.conf"),
        log_dir=tmp_path,
        slurmd=str(slurmd),
        deadline=2.0,
    )


@pytest.fixture
def run(settings):
    """Start agents on the same directory; whatever they leave is powered off at the end."""
    running: list[LocalAgent] = []

    def start(**changes):
        fields = {f: getattr(settings, f) for f in settings.__struct_fields__}
        agent = LocalAgent(AgentSettings(**(fields | changes)))
        running.append(agent)
        return agent

    yield start
    for agent in running:
        agent.close()
    for record in read_records(settings.directory):
        local_processes.power_off(str(settings.directory / record.id))


def ask(agent, op, **rest):
    return json.loads(agent.answer(json.dumps({"op": op, "cluster": CLUSTER} | rest).encode()))


def launch(agent, generation="g1", nodes=("n1",), **rest):
    return ask(
        agent, "launch", generation=generation, nodes=list(nodes), pool="p",
        instance_type="slurmd", market="reserved", price=0.1, **rest,
    )  # fmt: skip


def machines(agent, cluster=CLUSTER):
    return {m["node"]: m for m in ask(agent, "list", cluster=cluster)["machines"]}


def running(agent, count):
    def reached():
        found = machines(agent)
        return found if sum(m["state"] == "running" for m in found.values()) == count else None

    return eventually(reached)


def starts(settings):
    path = settings.directory.parent / "started"
    return path.read_text().split() if path.exists() else []


def test_a_launched_machine_runs_its_slurmd_until_it_is_terminated(run, settings):
    agent = run()
    answer = launch(agent, nodes=["n2", "n1"], jobs=[7])
    assert [m["node"] for m in answer["machines"]] == ["n2", "n1"]
    found = running(agent, 2)
    process = local_processes.Process(**found["n1"]["process"])
    assert local_processes.alive(process)
    assert found["n1"]["jobs"] == [7]
    ask(agent, "terminate", ids=[found["n1"]["id"]])
    eventually(lambda: "n1" not in machines(agent))
    assert not local_processes.alive(process)
    assert machines(agent)["n2"]["state"] == "running"


def test_the_same_generation_starts_nothing_twice_not_even_after_its_end(run, settings):
    agent = run()
    first = launch(agent)["machines"]
    running(agent, 1)
    eventually(lambda: starts(settings) == ["n1"])
    again = launch(agent)["machines"]
    assert [m["id"] for m in again] == [m["id"] for m in first]
    ask(agent, "terminate", ids=[first[0]["id"]])
    assert launch(agent)["code"] == "Gone"
    eventually(lambda: not machines(agent))
    assert launch(agent)["code"] == "Gone"
    assert starts(settings) == ["n1"]


def test_what_is_left_of_a_launch_is_answered_again(run):
    agent = run()
    first, second = launch(agent, nodes=["n1", "n2"])["machines"]
    ask(agent, "terminate", ids=[first["id"]])
    assert [m["id"] for m in launch(agent, nodes=["n1", "n2"])["machines"]] == [second["id"]]


def test_the_next_machine_of_a_node_waits_for_the_end_of_the_last(run, settings):
    Path(settings.slurmd).write_text(
        f"#!/bin/sh\ntrap '' TERM\necho \"$2\" >> {settings.log_dir}/started\n"
        "while :; do sleep 0.1; done\n"
    )
    agent = run(deadline=1.0)
    (old,) = launch(agent)["machines"]
    eventually(lambda: starts(settings) == ["n1"])
    ask(agent, "terminate", ids=[old["id"]])
    (new,) = launch(agent, "g2")["machines"]

    def states():
        return {r.id: r.state for r in read_records(settings.directory)}

    while True:
        started = starts(settings)  # read first: the old one may end between the two readings
        if states()[old["id"]] != InstanceState.STOPPING:
            break
        assert started == ["n1"]
    eventually(lambda: states()[new["id"]] == InstanceState.RUNNING)


def test_clusters_may_use_the_same_generation(run):
    agent = run()
    (mine,) = launch(agent)["machines"]
    (theirs,) = launch(agent, nodes=["n2"], cluster="another")["machines"]
    assert mine["id"] != theirs["id"]
    assert machines(agent).keys() == {"n1"}


def test_terminating_twice_or_what_never_was_is_no_error(run):
    agent = run()
    (machine,) = launch(agent)["machines"]
    for _ in range(2):
        assert ask(agent, "terminate", ids=[machine["id"], "never-was"])["ok"]


def test_another_clusters_machines_are_neither_seen_nor_touched(run):
    agent = run()
    (machine,) = launch(agent)["machines"]
    running(agent, 1)
    assert machines(agent, cluster="another") == {}
    ask(agent, "terminate", ids=[machine["id"]], cluster="another")
    assert machines(agent)["n1"]["state"] == "running"


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"nodes": ["n1", "login1"]}, "UnknownNode", "login1"),
        ({"nodes": []}, "InvalidRequest", "named"),
        ({"nodes": ["n1", "n1"]}, "InvalidRequest", "once"),
        ({"generation": "../../etc/x"}, "InvalidRequest", "not a name"),
    ],
)
def test_what_is_refused_starts_nothing(run, settings, change, code, said):
    agent = run(capacity=2)
    answer = launch(agent, **change)
    assert (answer["ok"], answer["code"]) == (False, code)
    assert said in answer["message"]
    assert machines(agent) == {}
    assert read_records(settings.directory) == []


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"nonsense", b'{"op":"exec","argv":["/bin/sh"]}', b"\xff\xfe", b"[1]",
             b'{"x":' + b"[" * 20_000],
    ids=["empty", "no fields", "nonsense", "exec", "no text", "list", "deep"],
)  # fmt: skip
def test_a_line_that_is_no_request_is_answered_as_such(run, line):
    assert json.loads(run().answer(line))["code"] == "InvalidRequest"


def test_a_launch_is_cut_to_the_capacity_but_not_below_its_minimum(run):
    agent = run(capacity=2)
    assert len(launch(agent, nodes=["n1", "n2", "n3"])["machines"]) == 2
    assert launch(agent, "g2", nodes=["n3"])["code"] == "InsufficientCapacity"
    said = ask(agent, "ping")
    assert (said["capacity"], said["used"]) == (2, 2)


def test_a_node_has_one_machine_at_a_time(run):
    agent = run()
    launch(agent)
    assert launch(agent, "g2")["code"] == "NodeBusy"


def test_a_machine_whose_slurmd_died_is_terminated(run, settings):
    agent = run()
    launch(agent)
    found = running(agent, 1)
    os.kill(found["n1"]["process"]["pid"], signal.SIGKILL)
    eventually(lambda: not machines(agent))
    (record,) = read_records(settings.directory)
    assert (record.state, record.why) == (InstanceState.TERMINATED, "slurmd exited")
    assert launch(agent, "g2")["ok"]


def test_slurmd_that_does_not_end_is_powered_off(run, settings):
    Path(settings.slurmd).write_text(
        "#!/bin/sh\ntrap '' TERM\nsetsid sleep 2000 &\nwhile :; do sleep 0.1; done\n"
    )
    agent = run(deadline=0.3)
    launch(agent)
    found = running(agent, 1)
    record = read_records(settings.directory)[0]
    ask(agent, "terminate", ids=[found["n1"]["id"]])
    eventually(lambda: not machines(agent))
    assert local_processes.belonging(str(settings.directory / record.id)) == []


def test_a_machine_terminated_while_it_boots_never_starts(run, settings):
    agent = run(boot=1000.0)
    (machine,) = launch(agent)["machines"]
    assert machines(agent)["n1"]["state"] == "pending"
    ask(agent, "terminate", ids=[machine["id"]])
    eventually(lambda: not machines(agent))
    assert starts(settings) == []


def test_a_machine_that_never_boots_stays_pending(run, settings):
    agent = run(never_boot=frozenset({"n1"}))
    launch(agent, nodes=["n1", "n2"])
    assert running(agent, 1)["n1"]["state"] == "pending"
    eventually(lambda: starts(settings))
    assert starts(settings) == ["n2"]


def test_a_restarted_agent_knows_its_machines_and_ends_what_was_being_ended(run, settings):
    agent = run()
    launch(agent, nodes=["n1", "n2"])
    before = running(agent, 2)
    eventually(lambda: sorted(starts(settings)) == ["n1", "n2"])
    agent.close()
    os.kill(before["n2"]["process"]["pid"], signal.SIGKILL)
    again = run()
    eventually(lambda: machines(again).keys() == {"n1"})
    assert machines(again)["n1"]["process"] == before["n1"]["process"]
    assert launch(again, nodes=["n1", "n2"])["machines"][0]["id"] == before["n1"]["id"]
    assert sorted(starts(settings)) == ["n1", "n2"]


def test_a_machine_started_just_before_a_crash_is_adopted_and_not_started_again(run, settings):
    agent = run()
    launch(agent)
    before = running(agent, 1)
    agent.close()
    path = settings.directory / f"{before['n1']['id']}.json"
    record = json.loads(path.read_bytes())
    path.write_text(json.dumps(record | {"state": "pending", "process": None}))
    again = run()
    assert machines(again)["n1"]["process"] == before["n1"]["process"]
    assert machines(again)["n1"]["state"] == "running"
    eventually(lambda: starts(settings))
    assert starts(settings) == ["n1"]


def test_one_that_has_closed_writes_nothing_beside_the_next(run, settings):
    agent = run()
    agent.close()
    assert launch(agent)["ok"] is False
    assert [path.name for path in settings.directory.iterdir()] == ["lock"]
    assert launch(run())["ok"]


def test_a_damaged_file_does_not_stop_the_others(run, settings):
    agent = run()
    launch(agent)
    running(agent, 1)
    agent.close()
    (settings.directory / "broken.json").write_text("{")
    assert machines(run()).keys() == {"n1"}


def test_two_agents_cannot_have_one_directory(run):
    run()
    with pytest.raises(BlockingIOError, match="another agent"):
        run()


def write_config(tmp_path, settings):
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(
        f"""
cluster: {{name: test}}
slurm: {{conf: {settings.slurm_conf}, sbin_dir: {tmp_path}, user: nobody}}
clouds:
  - {{name: here, provider: local, location: on-premises, socket: {tmp_path}/local.sock}}
pools:
  - {{name: p, cloud: here, nodes: "n[1-3]", cpus: 1, memory: 1024, slurmd_port: 7000}}
"""
    )
    return path


def speak(path, line, preexec=None):
    script = (
        "import socket,sys\n"
        "s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "try: s.sendall(sys.argv[2].encode())\n"
        "except BrokenPipeError: pass  # turned away, and told why\n"
        "print(s.makefile().readline())"
    )
    done = subprocess.run(
        ["/usr/bin/python3", "-c", script, str(path), line + "\n"],
        stdout=subprocess.PIPE, text=True, check=True, preexec_fn=preexec, timeout=patience(30),
    )  # fmt: skip
    return json.loads(done.stdout)


def answers(path):
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


@pytest.fixture
def daemon(tmp_path, settings):
    """The agent as its own process; called again it is killed with SIGKILL and started anew."""
    tmp_path.chmod(0o755)
    config = write_config(tmp_path, settings)
    processes: list[local_processes.Process] = []

    def start():
        for old in processes:
            local_processes.send(old, signal.SIGKILL)
            local_processes.wait_gone([old], patience(10))
        argv = [
            sys.executable,
            "-P",
            "-m",
            "slurm_elastic.cli.services.local_agent",
            "--config",
            str(config),
        ]
        argv += ["--log-dir", str(tmp_path)]
        processes.append(local_processes.spawn(argv, {}, log=str(tmp_path / "agent.log")))
        eventually(lambda: answers(tmp_path / "local.sock"))
        return tmp_path / "local.sock"

    yield start
    for process in processes:
        local_processes.stop(process)
    directory = tmp_path / "local.sock.machines"
    for record in read_records(directory):
        local_processes.power_off(str(directory / record.id))


def test_a_killed_agent_goes_on_where_it_was(daemon, tmp_path):
    path = daemon()
    request = {
        "op": "launch", "cluster": CLUSTER, "generation": "g", "pool": "p", "nodes": ["n1", "n2"],
        "instance_type": "slurmd", "market": "reserved", "price": 0,
    }  # fmt: skip
    first = speak(path, json.dumps(request))["machines"]
    path = daemon()  # SIGKILL, perhaps before the slurmd's are started
    assert [m["id"] for m in speak(path, json.dumps(request))["machines"]] == [
        m["id"] for m in first
    ]
    listing = json.dumps({"op": "list", "cluster": CLUSTER})
    eventually(lambda: [m["state"] for m in speak(path, listing)["machines"]] == ["running"] * 2)

    def started():  # as the slurmd's themselves say, a little later than the agent
        path = tmp_path / "started"
        return sorted(path.read_text().split()) if path.exists() else []

    eventually(lambda: started() == ["n1", "n2"])
    ids = [m["id"] for m in first]
    speak(path, json.dumps({"op": "terminate", "cluster": CLUSTER, "ids": ids}))
    path = daemon()  # in the middle of it
    eventually(lambda: not speak(path, listing)["machines"])
    assert started() == ["n1", "n2"], "none was started twice"


@pytest.mark.skipif(os.getuid() != 0, reason="needs other users")
def test_only_root_and_slurmuser_are_served(daemon):
    path = daemon()

    def become(uid):
        return lambda: (os.setgroups([]), os.setgid(uid), os.setuid(uid))

    assert speak(path, '{"op": "ping"}')["ok"]
    assert speak(path, '{"op": "ping"}', become(65534))["ok"]  # nobody is this site's SlurmUser
    with pytest.raises(subprocess.CalledProcessError):
        speak(path, '{"op": "ping"}', become(2))
    assert (path.stat().st_mode & 0o777, path.stat().st_uid) == (0o600, 65534)
    path.chmod(0o666)  # whoever gets in all the same is told by the kernel
    assert speak(path, '{"op": "ping"}', become(2))["code"] == "NotPermitted"


def test_the_agent_says_what_is_wrong_with_its_configuration(tmp_path, settings):
    path = write_config(tmp_path, settings)
    path.write_text(
        path.read_text()
        .replace("provider: local", "provider: fake")
        .replace(f", socket: {tmp_path}/local.sock", "")
    )
    done = subprocess.run(
        [sys.executable, "-P", "-m", "slurm_elastic.cli.services.local_agent", "--config", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "slurm-elastic-local: no cloud with provider local is configured\n"


def test_a_slurmd_that_cannot_be_started_is_tried_once_and_the_reason_kept(run, settings):
    agent = run(log_dir=settings.directory / "no such directory")
    launch(agent)
    eventually(lambda: not machines(agent))
    (record,) = read_records(settings.directory)
    assert record.why.startswith("slurmd cannot be started")


def test_ended_machines_are_forgotten_after_a_while(run, settings, monkeypatch):
    agent = run()
    (machine,) = launch(agent)["machines"]
    running(agent, 1)
    ask(agent, "terminate", ids=[machine["id"]])
    eventually(lambda: not machines(agent))
    monkeypatch.setattr("slurm_elastic.machine.local.driver._FORGET_AFTER_S", 0.0)
    eventually(lambda: not read_records(settings.directory))
    eventually(lambda: [p.name for p in settings.directory.iterdir()] == ["lock"])
