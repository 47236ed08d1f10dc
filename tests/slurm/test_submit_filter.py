"""The job submit filter's decisions, run in real Lua with tables in place of Slurm's userdata.

Every case runs in each Lua that is here: the interpreter, and the 5.1 library that Debian's
Slurm 22.05 loads.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Cluster, Config, PoolSettings, domain_pools
from slurm_elastic.config.sections.access import Who
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.hooks.submit_filter import FILTER, PLUGIN_SCRIPT, render, to_lua

NO_VAL16, NO_VAL, NO_VAL64 = 0xFFFE, 0xFFFFFFFE, 0xFFFFFFFFFFFFFFFE
INFINITE = 0xFFFFFFFF

UNSET: dict[str, Any] = {
    "min_nodes": NO_VAL,
    "max_nodes": NO_VAL,
    "min_cpus": NO_VAL,
    "num_tasks": NO_VAL,
    "time_limit": NO_VAL,
    "time_min": NO_VAL,
    "het_job_offset": NO_VAL,
    "pn_min_tmp_disk": NO_VAL,
    "req_switch": NO_VAL,
    "cpus_per_task": NO_VAL16,
    "ntasks_per_node": NO_VAL16,
    "ntasks_per_core": NO_VAL16,
    "ntasks_per_socket": NO_VAL16,
    "ntasks_per_board": NO_VAL16,
    "ntasks_per_tres": NO_VAL16,
    "pn_min_cpus": NO_VAL16,
    "boards_per_node": NO_VAL16,
    "sockets_per_board": NO_VAL16,
    "sockets_per_node": NO_VAL16,
    "cores_per_socket": NO_VAL16,
    "threads_per_core": NO_VAL16,
    "contiguous": NO_VAL16,
    "reboot": NO_VAL16,
    "requeue": NO_VAL16,
    "shared": NO_VAL16,
    "immediate": 0,
    "cron_job": False,
    "script": "#!/bin/sh\ntrue\n",
    "alloc_node": "login1",
}
"""A job_desc as sbatch sends it when nothing is asked for (slurm_init_job_desc_msg)."""

PARTITION: dict[str, Any] = {
    "state_up": 3,
    "flag_default": 0,
    "max_time": INFINITE,
    "default_time": NO_VAL,
    "min_nodes": 1,
    "max_nodes": INFINITE,
    "max_cpus_per_node": INFINITE,
    "total_nodes": 2,
    "total_cpus": 8,
}
STATIC = PARTITION | {"flag_default": 1, "total_nodes": 10, "total_cpus": 40}
PARTITIONS = {"static": STATIC, "onprem": PARTITION, "public": PARTITION}
ALL = "static,onprem,public"


def config(**changes: Any) -> Config:
    """Public is named first in the file, on-premises must come first in the list."""
    settings: dict[str, Any] = {
        "cluster": Cluster(name="test"),
        "clouds": (
            FakeCloud(name="public", location=Location.PUBLIC, allow=Who(groups=("staff",))),
            FakeCloud(name="onprem", location=Location.ON_PREMISES),
        ),
        "pools": (
            PoolSettings(name="pub", cloud="public", nodes="pub[1-6]", cpus=16, memory=64000,
                         real_memory=60000, features=("big", "avx512")),
            PoolSettings(name="gpu", cloud="public", nodes="gpu[1-2]", cpus=8, memory=32000,
                         real_memory=30000, gres={"gpu:a100": 2, "gpu:t4": 1}),
            PoolSettings(name="op", cloud="onprem", nodes="op[1-4]", cpus=4, memory=8000,
                         real_memory=7000),
        ),
        "limits": Limits(dollars_per_hour=5.0),
    }  # fmt: skip
    return Config(**settings | changes)


def run_interpreter(code: str) -> str:
    done = subprocess.run(
        [shutil.which("lua") or "lua", "-"], input=code, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_library(code: str) -> str:
    """The same in liblua5.1; the answer comes back in the global ``answer``."""
    lua = ctypes.CDLL(LIBRARY)
    lua.luaL_newstate.restype = ctypes.c_void_p
    lua.lua_tolstring.restype = ctypes.c_char_p
    state = ctypes.c_void_p(lua.luaL_newstate())
    try:
        lua.luaL_openlibs(state)
        code = "answer = ''\nfunction print(text) answer = answer .. text .. '\\n' end\n" + code
        failed = lua.luaL_loadstring(state, code.encode()) or lua.lua_pcall(state, 0, 0, 0)
        assert not failed, lua.lua_tolstring(state, -1, None)
        lua.lua_getfield(state, -10002, b"answer")  # LUA_GLOBALSINDEX of 5.1
        text = lua.lua_tolstring(state, -1, None)
        assert isinstance(text, bytes)
        return text.decode()
    finally:
        lua.lua_close(state)


LIBRARY = ctypes.util.find_library("lua5.1")
LUAS: dict[str, Callable[[str], str]] = {}
if shutil.which("lua"):
    LUAS["interpreter"] = run_interpreter
if LIBRARY:
    LUAS["library 5.1"] = run_library

HARNESS = """
local log = {}
slurm = {
  SUCCESS = 0,
  log_debug = function(format, ...) end,
  log_error = function(format, ...) log[#log + 1] = string.format(format, ...) end,
}
"""

SUBMIT = """
local code = slurm_elastic_submit(job, partitions, 1000)
print(tostring(job.partition) .. " " .. tostring(code))
for _, line in ipairs(log) do print(line) end
"""


def test_some_lua_is_here() -> None:
    assert LUAS, "neither lua nor liblua5.1 is installed"


@pytest.fixture(params=LUAS)
def lua(request: pytest.FixtureRequest) -> Callable[[str], str]:
    return LUAS[request.param]


def listed(
    lua: Callable[[str], str],
    job: Mapping[str, Any],
    partitions: Mapping[str, Mapping[str, Any]] = PARTITIONS,
    text: str | None = None,
) -> str:
    """The job's partition afterwards; "nil" where it was left alone."""
    code = "\n".join(
        (
            HARNESS,
            text or render(config(), domain_pools(config(), expand))[FILTER],
            f"local job = {to_lua(UNSET | dict(job))}",
            f"local partitions = {to_lua(partitions)}",
            SUBMIT,
        )
    )
    answer = lua(code).strip()
    assert answer.endswith(" 0"), answer
    return answer.removesuffix(" 0")


JOBS: dict[str, tuple[dict[str, Any], str]] = {
    # the user chose, or the job is of a kind that no list may touch
    "plain": ({}, ALL),
    "empty strings": ({"partition": "", "req_nodes": "", "exc_nodes": "", "features": ""}, ALL),
    "partition": ({"partition": "static"}, "static"),
    "node list": ({"req_nodes": "st1"}, "nil"),
    "exclusion": ({"exc_nodes": "st1"}, "nil"),
    "reservation": ({"reservation": "res"}, "nil"),
    "other cluster": ({"clusters": "a,b"}, "nil"),
    "part of a heterogeneous job": ({"het_job_offset": 0}, "nil"),
    "scrontab": ({"cron_job": True}, "nil"),
    "at once or not at all": ({"immediate": 1}, "nil"),
    # requests that are not judged
    "burst buffer": ({"burst_buffer": "#BB"}, "nil"),
    "network": ({"network": "sn_all"}, "nil"),
    "OCI container": ({"container": "/c"}, "nil"),
    "batch features": ({"batch_features": "big"}, "nil"),
    "preferred features": ({"prefer": "big"}, "nil"),
    "GPUs a socket": ({"tres_per_socket": "gres:gpu:1"}, "nil"),
    "tasks a GPU": ({"ntasks_per_tres": 2}, "nil"),
    "sockets": ({"sockets_per_node": 2}, "nil"),
    "cores a socket": ({"cores_per_socket": 8}, "nil"),
    "tasks a socket": ({"ntasks_per_socket": 1}, "nil"),
    "core specialisation": ({"core_spec": 1}, "nil"),
    "contiguous": ({"contiguous": 1}, "nil"),
    "not contiguous": ({"contiguous": 0}, ALL),
    "switches": ({"req_switch": 1}, "nil"),
    "temporary disk": ({"pn_min_tmp_disk": 10}, "nil"),
    "reboot": ({"reboot": 1}, "nil"),
    "segment": ({"segment_size": 4}, "nil"),
    "hyperthreads": ({"threads_per_core": 2}, "nil"),
    "no hyperthreads": ({"threads_per_core": 1, "ntasks_per_core": 1}, ALL),
    # nodes
    "nodes for all": ({"min_nodes": 4}, ALL),
    "nodes for the public cloud": ({"min_nodes": 8}, "static,public"),
    "nodes for nobody of ours": ({"min_nodes": 9}, "nil"),
    "nodes beyond the default": ({"min_nodes": 11}, "nil"),
    "max_nodes 0 is not set": ({"min_nodes": 2, "max_nodes": 0}, ALL),
    # CPUs and tasks
    "CPUs a task for all": ({"cpus_per_task": 4, "min_cpus": 4}, ALL),
    "CPUs a task": ({"cpus_per_task": 5, "min_cpus": 5}, "static,public"),
    "CPUs a task for nobody": ({"cpus_per_task": 17, "min_cpus": 17}, "nil"),
    "tasks for all": ({"num_tasks": 16, "min_cpus": 16}, ALL),
    "tasks": ({"num_tasks": 17, "min_cpus": 17}, "static,public"),
    "tasks beyond the default": ({"num_tasks": 41, "min_cpus": 41}, "public"),
    "tasks of both pools": ({"num_tasks": 112, "min_cpus": 112}, "public"),
    "tasks for nobody": ({"num_tasks": 113, "min_cpus": 113}, "nil"),
    "tasks on few nodes": ({"num_tasks": 33, "min_cpus": 33, "max_nodes": 2}, "nil"),
    "tasks that fill nodes badly": ({"num_tasks": 5, "cpus_per_task": 3, "min_cpus": 15},
                                    "static,public"),
    "tasks a node": ({"ntasks_per_node": 16, "min_nodes": 6}, "static,public"),
    "tasks a node, both limits": ({"ntasks_per_node": 8, "cpus_per_task": 2, "min_nodes": 6},
                                  "static,public"),
    "tasks a node for nobody": ({"ntasks_per_node": 17}, "nil"),
    "total with tasks a node": ({"ntasks_per_node": 2, "num_tasks": 9, "min_cpus": 9},
                                "static,public"),
    "minimum CPUs of a node": ({"pn_min_cpus": 8}, "static,public"),
    "CPUs since 23.11": ({"tres_per_task": "cpu=5", "cpus_per_task": 5}, "static,public"),
    # memory
    "memory for all": ({"min_mem_per_node": 7000}, ALL),
    "memory": ({"min_mem_per_node": 7001}, "static,public"),
    "memory for nobody": ({"min_mem_per_node": 60001}, "nil"),
    "all memory": ({"min_mem_per_node": 0}, ALL),
    "memory a CPU for all": ({"min_mem_per_cpu": 1750, "cpus_per_task": 4}, ALL),
    "memory a CPU": ({"min_mem_per_cpu": 1751, "cpus_per_task": 4}, "static,public"),
    "memory a CPU limits tasks": ({"min_mem_per_cpu": 3500, "num_tasks": 9, "min_cpus": 9},
                                  "static,public"),
    "memory a CPU, whole node": ({"min_mem_per_cpu": 1751, "shared": 0}, "static,public"),
    "memory a CPU, shared node": ({"min_mem_per_cpu": 1751}, ALL),
    "exclusive": ({"shared": 0}, ALL),
    "memory not set": ({"min_mem_per_node": NO_VAL64}, ALL),
    # gres
    "GPU": ({"tres_per_node": "gres:gpu"}, "static,public"),
    "no gres": ({"tres_per_node": "none"}, ALL),
    "no gres, in capitals": ({"tres_per_node": "NONE"}, ALL),
    "no gres, with its kind": ({"tres_per_node": "gres:none"}, ALL),
    "no gres, new spelling": ({"tres_per_node": "gres/none"}, ALL),
    "GPUs": ({"tres_per_node": "gres:gpu:3"}, "static,public"),
    "GPUs, new spelling": ({"tres_per_node": "gres/gpu=3"}, "static,public"),
    "GPUs for nobody": ({"tres_per_node": "gres:gpu:4"}, "nil"),
    "GPUs of a type": ({"tres_per_node": "gres:gpu:a100:2"}, "static,public"),
    "GPUs of a type for nobody": ({"tres_per_node": "gres:gpu:t4:2"}, "nil"),
    "unknown type": ({"tres_per_node": "gres:gpu:h100:1"}, "nil"),
    "unknown gres": ({"tres_per_node": "gres:tpu:1"}, "nil"),
    "two gres": ({"tres_per_node": "gres:gpu:1,gres:tpu:1"}, "nil"),
    "unreadable gres": ({"tres_per_node": "gres:gpu:a:b:c"}, "nil"),
    "GPUs on more nodes than have them": ({"tres_per_node": "gres:gpu:1", "min_nodes": 3}, "nil"),
    "GPU and CPUs of the GPU nodes": ({"tres_per_node": "gres:gpu:1", "cpus_per_task": 9}, "nil"),
    "GPU and feature of other nodes": ({"tres_per_node": "gres:gpu:1", "features": "big"}, "nil"),
    "GPUs of the job": ({"tres_per_job": "gres:gpu:6"}, "static,public"),
    "GPUs of the job for nobody": ({"tres_per_job": "gres:gpu:7"}, "nil"),
    "GPUs of the job on one node": ({"tres_per_job": "gres:gpu:4", "max_nodes": 1}, "nil"),
    "GPU a task": ({"tres_per_task": "gres:gpu:1", "num_tasks": 6}, "static,public"),
    "GPU a task for nobody": ({"tres_per_task": "gres:gpu:1", "num_tasks": 7}, "nil"),
    "GPUs a task for nobody": ({"tres_per_task": "gres:gpu:2", "num_tasks": 3}, "nil"),
    "CPUs a GPU": ({"tres_per_node": "gres:gpu:2", "cpus_per_tres": "gres:gpu:4"},
                   "static,public"),
    "CPUs a GPU for nobody": ({"tres_per_node": "gres:gpu:2", "cpus_per_tres": "gres:gpu:5"},
                              "nil"),
    "CPUs a GPU of the job": ({"tres_per_job": "gres:gpu:2", "cpus_per_tres": "gres:gpu:1"},
                              "static,public"),
    "CPUs a GPU of the job for nobody": (
        {"tres_per_job": "gres:gpu:2", "cpus_per_tres": "gres:gpu:5"}, "nil"
    ),
    "memory a GPU of the job": ({"tres_per_job": "gres:gpu:2", "mem_per_tres": "gres:gpu:15000"},
                                "static,public"),
    "CPUs a GPU of a task": (
        {"tres_per_task": "gres:gpu:1", "num_tasks": 2, "cpus_per_tres": "gres:gpu:4"},
        "static,public",
    ),
    "CPUs a GPU of a task for nobody": (
        {"tres_per_task": "gres:gpu:1", "cpus_per_tres": "gres:gpu:9"}, "nil"
    ),
    "CPUs a GPU without GPUs": ({"cpus_per_tres": "gres:gpu:1"}, "nil"),
    "memory a GPU": ({"tres_per_node": "gres:gpu:2", "mem_per_tres": "gres:gpu:15000"},
                     "static,public"),
    "memory a GPU for nobody": ({"tres_per_node": "gres:gpu:2", "mem_per_tres": "gres:gpu:15001"},
                                "nil"),
    # features
    "feature": ({"features": "big"}, "static,public"),
    "features": ({"features": "big&avx512"}, "static,public"),
    "cloud as a feature": ({"features": "onprem"}, "static,onprem"),
    "pool as a feature": ({"features": "gpu"}, "static,public"),
    "unknown feature": ({"features": "big&avx1024"}, "nil"),
    "one of two features": ({"features": "big|old"}, "nil"),
    "count of a feature": ({"features": "big*2"}, "nil"),
    "bracketed features": ({"features": "[big|onprem]"}, "nil"),
    # time
    "time limit": ({"time_limit": 60}, ALL),
    "unlimited": ({"time_limit": INFINITE}, ALL),
}  # fmt: skip


@pytest.mark.parametrize(("job", "expected"), JOBS.values(), ids=JOBS)
def test_partition_list_of_a_job(
    lua: Callable[[str], str], job: Mapping[str, Any], expected: str
) -> None:
    assert listed(lua, job) == expected


def changed(name: str, **changes: Any) -> dict[str, dict[str, Any]]:
    return PARTITIONS | {name: PARTITIONS[name] | changes}


SITES: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]], str]] = {
    # the site's default partition
    "user may not use the default": ({}, {k: v for k, v in PARTITIONS.items() if k != "static"},
                                     "nil"),
    "no default partition": ({}, changed("static", flag_default=0), "nil"),
    "default is drained": ({}, changed("static", state_up=2), "nil"),
    "default is inactive": ({}, changed("static", state_up=0), "nil"),
    "default is down": ({}, changed("static", state_up=1), ALL),
    "default asks for two nodes": ({}, changed("static", min_nodes=2), "nil"),
    "default asks for two, job too": ({"min_nodes": 2}, changed("static", min_nodes=2), ALL),
    "default refuses this host": ({}, changed("static", allow_alloc_nodes="login2"), "nil"),
    "default admits this host": ({}, changed("static", allow_alloc_nodes="login2,login1"), ALL),
    **{
        f"default admits {hosts} and {host} asks": (
            {"alloc_node": host}, changed("static", allow_alloc_nodes=hosts), expected,
        )
        for hosts, host, expected in (
            ("login[1-4]", "login1", ALL),
            ("login[1-4]", "login5", "nil"),
            ("login[1-4]", "login01", "nil"),
            ("login[1-4]", "login", "nil"),
            ("gate[1-4]", "login1", "nil"),
            ("login[01-12]", "login07", ALL),
            ("login[01-12]", "login7", "nil"),
            ("login[8-12]", "login10", ALL),
            ("login[08-120]", "login110", ALL),
            ("gate,login[2,5-7,12]", "login12", ALL),
            ("gate,login[2,5-7,12]", "login6", ALL),
            ("gate,login[2,5-7,12]", "login3", "nil"),
            ("gate,login[2,5-7,12]", "gate", ALL),
            ("login[1-2,5]-int", "login5-int", ALL),
            ("login[1-2]-int", "login1", "nil"),
            ("rack[1-2]n[01-12]", "rack2n12", ALL),
            ("rack[1-2]n[01-12]", "rack3n12", "nil"),
            ("n[1-2]7,x", "n17", ALL),
            ("[1-3]", "2", ALL),
            # not readable: Slurm itself decides
            ("login[a-c]", "login1", ALL),
            ("login[1-2", "login1", ALL),
            ("login(1-2)", "login1", ALL),
        )
    },
    "default is ours": ({}, {"onprem": PARTITION | {"flag_default": 1}, "public": PARTITION},
                        "onprem,public"),
    "default is ours, ranked last": ({}, {"public": PARTITION | {"flag_default": 1},
                                          "onprem": PARTITION}, "public,onprem"),
    # the default surely cannot hold it
    "nodes over MaxNodes": ({"min_nodes": 4}, changed("static", max_nodes=3), "onprem,public"),
    "nodes over the default's": ({"min_nodes": 4}, changed("static", total_nodes=3),
                                 "onprem,public"),
    "CPUs over the default's": ({"min_cpus": 9}, changed("static", total_cpus=8), "onprem,public"),
    "time over the default's": ({"time_limit": 61}, changed("static", max_time=60),
                                "onprem,public"),
    "minimum time within": ({"time_limit": 61, "time_min": 30}, changed("static", max_time=60),
                            ALL),
    "default is down, too small": ({"min_nodes": 4}, changed("static", max_nodes=3, state_up=1),
                                   ALL),
    # ours
    "user may not use ours": ({}, {"static": STATIC}, "nil"),
    "user may use one of ours": ({}, {"static": STATIC, "public": PARTITION}, "static,public"),
    "ours is drained": ({}, changed("onprem", state_up=2), "static,public"),
    "ours is down": ({}, changed("onprem", state_up=1), "static,public"),
    "ours refuses this host": ({}, changed("public", allow_alloc_nodes="login2"), "static,onprem"),
    "ours admits all hosts": ({}, changed("public", allow_alloc_nodes="ALL"), ALL),
    "ours has a node limit": ({"min_nodes": 3}, changed("public", max_nodes=2), "static,onprem"),
    "ours asks for two nodes": ({}, changed("public", min_nodes=2), "static,onprem"),
    "ours asks for two, job too": ({"min_nodes": 2}, changed("public", min_nodes=2), ALL),
    "CPU limit of a node": ({"cpus_per_task": 4}, changed("onprem", max_cpus_per_node=3),
                            "static,public"),
    "memory limit of a node": ({"min_mem_per_node": 2000}, changed("onprem", max_mem_per_node=1000),
                               "static,public"),
    "memory a CPU, whole nodes only": ({"min_mem_per_cpu": 1751}, changed("onprem", max_share=0),
                                       "static,public"),
    "whole nodes only": ({}, changed("onprem", max_share=0), ALL),
    "memory limit of a CPU": ({"min_mem_per_cpu": 2000}, changed("onprem", max_mem_per_cpu=1000),
                              "static,public"),
    "default memory of a node": ({}, changed("onprem", def_mem_per_node=8000), "static,public"),
    "default memory of a CPU": ({"cpus_per_task": 4}, changed("onprem", def_mem_per_cpu=2000),
                                "static,public"),
    "default memory, job asks less": ({"min_mem_per_node": 100},
                                      changed("onprem", def_mem_per_node=8000), ALL),
    # time limits
    "time over ours": ({"time_limit": 61}, changed("public", max_time=60), "static,onprem"),
    "time at ours": ({"time_limit": 60}, changed("public", max_time=60), ALL),
    "unlimited, ours is limited": ({"time_limit": INFINITE}, changed("public", max_time=60),
                                   "static,onprem"),
    "no limit, ours would cut it short": ({}, changed("public", max_time=60), "static,onprem"),
    "no limit, ours is as long": ({}, PARTITIONS | {"static": STATIC | {"max_time": 60},
                                                    "public": PARTITION | {"max_time": 60}}, ALL),
    "no limit, ours says what it gets": ({}, changed("public", max_time=60, default_time=30), ALL),
    "no limit, default's DefaultTime fits": ({}, PARTITIONS | {
        "static": STATIC | {"default_time": 60}, "public": PARTITION | {"max_time": 60}}, ALL),
    "no limit, default's DefaultTime is longer": ({}, PARTITIONS | {
        "static": STATIC | {"default_time": 61},
        "public": PARTITION | {"max_time": 60, "default_time": 30}}, "static,onprem"),
    # accounts and QOS
    "account allowed": ({"account": "physics"}, changed("public", allow_accounts="chem,physics"),
                        ALL),
    "account not allowed": ({"account": "phys"}, changed("public", allow_accounts="chem,physics"),
                            "static,onprem"),
    "default account allowed": ({"default_account": "chem"},
                                changed("public", allow_accounts="chem,physics"), ALL),
    "named account counts": ({"account": "bio", "default_account": "chem"},
                             changed("public", allow_accounts="chem"), "static,onprem"),
    "no account": ({}, changed("public", allow_accounts="chem"), "static,onprem"),
    "account denied": ({"account": "chem"}, changed("public", deny_accounts="chem"),
                       "static,onprem"),
    "account not denied": ({"account": "bio"}, changed("public", deny_accounts="chem"), ALL),
    "allow beats deny": ({"account": "chem"}, changed("public", allow_accounts="chem",
                                                      deny_accounts="chem"), ALL),
    "all accounts": ({}, changed("public", allow_accounts="ALL"), ALL),
    "QOS allowed": ({"qos": "burst"}, changed("public", allow_qos="burst"), ALL),
    "default QOS allowed": ({"default_qos": "burst"}, changed("public", allow_qos="burst"), ALL),
    "no QOS": ({}, changed("public", allow_qos="burst"), "static,onprem"),
    "QOS denied": ({"qos": "debug"}, changed("public", deny_qos="debug"), "static,onprem"),
}  # fmt: skip


@pytest.mark.parametrize(("job", "partitions", "expected"), SITES.values(), ids=SITES)
def test_partition_list_at_a_site(
    lua: Callable[[str], str],
    job: Mapping[str, Any],
    partitions: Mapping[str, Mapping[str, Any]],
    expected: str,
) -> None:
    assert listed(lua, job, partitions) == expected


def test_site_wide_default_memory_counts_where_the_partition_has_none(
    lua: Callable[[str], str], tmp_path: Any
) -> None:
    for line, job, expected in (
        ("DefMemPerCPU=2000", {"cpus_per_task": 4}, "static,public"),
        ("DefMemPerCPU=2000", {"cpus_per_task": 3}, ALL),
        ("DefMemPerNode=9000", {}, "static,public"),
        ("DefMemPerNode=UNLIMITED", {}, ALL),
    ):
        conf = tmp_path / "slurm.conf"
        conf.write_text(f"ClusterName=x\n{line}\n")
        pools = domain_pools(config(), expand)
        text = render(config(), pools, siteconf.read(conf))[FILTER]
        assert listed(lua, job, text=text) == expected, line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("MaxNodeCount=100", ALL),
        ("MaxNodeCount=100\nEnforcePartLimits=ANY", ALL),
        # Slurm refuses a list with a partition that cannot hold the job now.
        ("MaxNodeCount=100\nEnforcePartLimits=all", "onprem,public"),
        ("MaxNodeCount=100\nEnforcePartLimits=YES", "onprem,public"),
        ("TreeWidth=100", "onprem,public"),
    ],
)
def test_a_default_partition_that_gets_dynamic_nodes_stays_listed(
    lua: Callable[[str], str], tmp_path: Path, line: str, expected: str
) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"ClusterName=x\n{line}\n")
    text = render(config(), domain_pools(config(), expand), siteconf.read(conf))[FILTER]
    empty = changed("static", total_nodes=0, total_cpus=0)
    for job in ({}, {"min_nodes": 4, "min_cpus": 4}):
        assert listed(lua, job, empty, text) == expected


SAID = """
slurm.log_user = function(format, ...) log[#log + 1] = string.format(format, ...) end
"""


def said(lua: Callable[[str], str], site: Config, job: Mapping[str, Any]) -> str:
    """The words to the user, and the fate of the job's partition."""
    code = (
        HARNESS,
        SAID,
        render(site, domain_pools(site, expand))[FILTER],
        f"local job = {to_lua(UNSET | dict(job))}",
        f"local partitions = {to_lua(PARTITIONS)}",
        SUBMIT,
    )
    return lua("\n".join(code)).strip()


def test_a_job_that_can_never_fit_the_partition_it_names_is_told_so_and_passes(
    lua: Callable[[str], str],
) -> None:
    answer = said(lua, config(), {"partition": "public", "min_nodes": 9})
    told = "this job can never start in partition public: it asks for 9 nodes"
    assert answer.startswith("public 0")
    assert told in answer
    assert "such nodes can run" in answer
    assert said(lua, config(), {"partition": "public", "min_nodes": 4}) == "public 0"
    assert said(lua, config(), {"partition": "static", "min_nodes": 4}) == "static 0"
    assert said(lua, config(), {"partition": "static,public", "min_nodes": 4}) == "static,public 0"


def test_a_job_over_a_limit_is_not_listed_for_the_cloud(lua: Callable[[str], str]) -> None:
    """It could only wait there."""
    free, small = config(), config(limits=Limits(nodes=3, dollars_per_hour=5.0))
    assert said(lua, free, {"min_nodes": 8}) == "static,public 0"
    assert said(lua, small, {"min_nodes": 8}) == "nil 0"


DENIED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "ours denies more": ({"account": "bio"}, {}, {"deny_accounts": "chem"}, "static,onprem"),
    "the default account": ({"default_account": "bio"}, {}, {"deny_accounts": "chem"},
                            "static,onprem"),
    "the default denies it, too": ({"account": "bio"}, {"deny_accounts": "law,chem"},
                                   {"deny_accounts": "Chem"}, ALL),
    "the default denies another": ({"account": "bio"}, {"deny_accounts": "law"},
                                   {"deny_accounts": "law,chem"}, "static,onprem"),
    "the default has a list that switches its own off": (
        {"account": "bio"}, {"allow_accounts": "bio", "deny_accounts": "chem"},
        {"deny_accounts": "chem"}, "static,onprem"),
    "ours has such a list": ({"account": "bio"}, {},
                             {"allow_accounts": "bio", "deny_accounts": "chem"}, ALL),
    "no account": ({}, {}, {"deny_accounts": "chem"}, ALL),
    "none is denied": ({"account": "bio"}, {}, {}, ALL),
}  # fmt: skip


@pytest.mark.parametrize(("job", "static", "public", "expected"), DENIED.values(), ids=DENIED)
def test_a_cloud_that_may_deny_an_account_above_the_jobs_is_not_listed(
    lua: Callable[[str], str],
    job: dict[str, Any],
    static: dict[str, Any],
    public: dict[str, Any],
    expected: str,
) -> None:
    partitions = dict(PARTITIONS) | {"static": STATIC | static, "public": PARTITION | public}
    pools = domain_pools(config(), expand)
    below = render(config(), pools, denies_below=True)[FILTER]
    assert listed(lua, job, partitions, below) == expected
    assert listed(lua, job, partitions, render(config(), pools)[FILTER]) == ALL


def on_spot(*names: str) -> Config:
    """These pools of the public cloud, by default all, may be bought on spot."""
    pools = [
        replace(pool, markets=(Market.SPOT, Market.ON_DEMAND))
        if pool.name in (names or ("pub", "gpu"))
        else pool
        for pool in config().pools
    ]
    return config(pools=tuple(pools))


@pytest.mark.parametrize(
    ("line", "requeue", "expected"),
    [
        ("", NO_VAL16, ALL),
        ("", 1, ALL),
        ("", 0, "static,onprem"),
        ("JobRequeue=1", NO_VAL16, ALL),
        ("JobRequeue=1", 0, "static,onprem"),
        ("JobRequeue=0", NO_VAL16, "static,onprem"),
        ("JobRequeue=0", 1, ALL),
        ("JobRequeue=0", 0, "static,onprem"),
    ],
)
def test_a_job_that_must_not_be_requeued_is_kept_from_spot_machines(
    lua: Callable[[str], str], tmp_path: Any, line: str, requeue: int, expected: str
) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"ClusterName=x\n{line}\n")
    site = siteconf.read(conf)
    for where, listing in ((on_spot(), expected), (config(), ALL)):
        text = render(where, domain_pools(where, expand), site)[FILTER]
        assert listed(lua, {"requeue": requeue}, text=text) == listing


SPOT_CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "another pool holds it": ({}, ALL, "pub[1-6]"),
    "no other pool holds it": ({"cpus_per_task": 9, "min_cpus": 9}, "static", "nil"),
    "other pools hold too few nodes of it": ({"min_nodes": 5}, "static", "nil"),
    "its tool submits it again": ({"comment": "x;spot=ok ckpt=none"}, ALL, "nil"),
    "no word about spot": ({"comment": "spot=oknot"}, ALL, "pub[1-6]"),
    "an account whose tools do": ({"account": "Flow"}, ALL, "nil"),
    "its user's account": ({"default_account": "flow"}, ALL, "nil"),
    "another account": ({"account": "bio", "default_account": "flow"}, ALL, "pub[1-6]"),
    "it names the cloud": ({"partition": "public"}, "public", "pub[1-6]"),
    "it names the cloud and nodes": ({"partition": "public", "req_nodes": "pub1"}, "public", "nil"),
    "it names the cloud, and excludes": (
        {"partition": "public", "exc_nodes": "gpu2"},
        "public",
        "gpu2,pub[1-6]",
    ),
    "it names the cloud, no other pool": (
        {"partition": "public", "cpus_per_task": 9, "min_cpus": 9},
        "public",
        "nil",
    ),
    "it names the cloud, and asks for what is not judged": (
        {"partition": "public", "pn_min_tmp_disk": 100},
        "public",
        "nil",
    ),
    "it names a partition of the site": ({"partition": "static"}, "static", "nil"),
}
LAST_NODES: dict[str, tuple[dict[str, Any], str]] = {
    "a large node": ({"cpus_per_task": 9, "min_cpus": 9}, "static,public pub[1-4]"),
    "two large nodes": ({"cpus_per_task": 9, "min_cpus": 18, "num_tasks": 2}, "static,public pub[1-4]"),
    "three large nodes": ({"cpus_per_task": 9, "min_cpus": 27, "num_tasks": 3}, "nil nil"),
    "four nodes of both pools": ({"min_nodes": 4}, f"{ALL} pub[1-4]"),
}  # fmt: skip


@pytest.mark.parametrize(("job", "partition", "excluded"), SPOT_CASES.values(), ids=SPOT_CASES)
def test_a_job_that_must_not_be_requeued_excludes_spot_pools(
    lua: Callable[[str], str], job: dict[str, Any], partition: str, excluded: str
) -> None:
    where = on_spot("pub")
    answer = submitted_once(lua, job, where)
    expected = partition if partition != "static" or "partition" in job else "nil"
    assert answer == f"{expected} {excluded}"
    again = submitted_once(lua, job | {"requeue": 1}, where)
    assert again.split()[1] == job.get("exc_nodes", "nil")


@pytest.mark.parametrize(("job", "expected"), LAST_NODES.values(), ids=LAST_NODES)
def test_a_job_that_must_not_be_requeued_may_use_the_last_nodes_of_a_spot_pool(
    lua: Callable[[str], str], job: dict[str, Any], expected: str
) -> None:
    where = on_spot("pub")
    pools = tuple(
        replace(pool, on_demand_nodes=2) if pool.name == "pub" else pool for pool in where.pools
    )
    assert submitted_once(lua, job, replace(where, pools=pools)) == expected


def submitted_once(lua: Callable[[str], str], job: Mapping[str, Any], where: Config) -> str:
    """The partitions and the excluded nodes of a job with ``--no-requeue``."""
    allow = Who(groups=("staff",), no_requeue_on_spot=("flow",))
    clouds = [
        replace(cloud, allow=allow) if cloud.name == "public" else cloud for cloud in where.clouds
    ]
    where = replace(where, clouds=tuple(clouds))
    text = render(where, domain_pools(where, expand))[FILTER]
    shown = 'print(tostring(job.partition) .. " " .. tostring(job.exc_nodes))'
    code = "\n".join((
        HARNESS, text, f"local job = {to_lua(UNSET | {'requeue': 0} | dict(job))}",
        f"local partitions = {to_lua(PARTITIONS)}", SUBMIT.splitlines()[1], shown,
    ))  # fmt: skip
    return lua(code).strip()


def test_machines_on_premises_are_not_spot_whatever_the_pool_says(
    lua: Callable[[str], str],
) -> None:
    pools = tuple(replace(pool, markets=(Market.SPOT,)) for pool in config().pools)
    text = render(config(pools=pools), domain_pools(config(pools=pools), expand))[FILTER]
    assert listed(lua, {"requeue": 0}, text=text) == "static,onprem"


def test_cloud_that_may_not_be_used_yet_is_not_listed(lua: Callable[[str], str]) -> None:
    uncapped = config(limits=Limits())
    text = render(uncapped, domain_pools(uncapped, expand))[FILTER]
    assert listed(lua, {}, text=text) == "static,onprem"


def test_interactive_jobs_are_listed_where_srun_waits_long_enough_for_machines(
    lua: Callable[[str], str], tmp_path: Any
) -> None:
    interactive = {"script": ""}
    conf = tmp_path / "slurm.conf"
    for lines, seconds, expected in (
        ("", 450.0, ALL),
        ("", 451.0, "static,onprem"),
        ("ResumeTimeout=300", 1650.0, ALL),
        ("ResumeTimeout=300", 1651.0, "static,onprem"),
        ("SuspendTimeout=10\nResumeTimeout=20", 151.0, "static,onprem"),
    ):
        conf.write_text(f"ClusterName=x\n{lines}\n")
        slow = config(
            clouds=(
                FakeCloud(
                    name="public",
                    location=Location.PUBLIC,
                    allow=Who(groups=("staff",)),
                    resume_timeout=seconds,
                ),
                FakeCloud(name="onprem", location=Location.ON_PREMISES, resume_timeout=60.0),
            )
        )
        text = render(slow, domain_pools(slow, expand), siteconf.read(conf))[FILTER]
        assert listed(lua, interactive, text=text) == expected, (lines, seconds)
        assert listed(lua, {}, text=text) == ALL


def test_partition_has_the_name_that_the_cloud_gives_it(lua: Callable[[str], str]) -> None:
    named = config(
        clouds=(
            FakeCloud(name="public", location=Location.ON_PREMISES, partition="burst"),
            FakeCloud(name="onprem", location=Location.ON_PREMISES),
        )
    )
    text = render(named, domain_pools(named, expand))[FILTER]
    partitions = {"static": STATIC, "burst": PARTITION, "onprem": PARTITION}
    assert listed(lua, {}, partitions, text) == "static,burst,onprem"


@pytest.mark.parametrize(
    "broken",
    [
        "job = setmetatable({}, { __index = function() error('no field') end })",
        "job = setmetatable({}, { __newindex = function() error('read only') end })",
        "partitions = nil",
        "partitions = { static = 3 }",
        "slurm.log_debug = nil slurm.log_error = nil partitions = nil",
        "slurm = { SUCCESS = 0 } partitions = nil",
    ],
)
def test_errors_leave_the_job_as_it_came(lua: Callable[[str], str], broken: str) -> None:
    text = render(config(), domain_pools(config(), expand))[FILTER]
    code = f"{HARNESS}\n{text}\nlocal job, partitions = {{}}, {to_lua(PARTITIONS)}\n{broken}\n"
    answer = lua(code + "print(slurm_elastic_submit(job, partitions, 1) .. '')\n"
                 "print(tostring(rawget(job, 'partition')))")  # fmt: skip
    assert answer == "0\nnil\n"


def test_plugin_script_without_the_filter_lets_every_job_pass(
    lua: Callable[[str], str], tmp_path: Any
) -> None:
    (tmp_path / PLUGIN_SCRIPT).write_text(render(config(), ())[PLUGIN_SCRIPT])
    code = f"{HARNESS}\ndofile({to_lua(str(tmp_path / PLUGIN_SCRIPT))})\n"
    code += "print(slurm_job_submit({}, {}, 1) .. slurm_job_modify({}, {}, {}, 1))\nprint(log[1])"
    first, error = lua(code).splitlines()
    assert first == "00"
    assert "slurm_elastic.lua" in error


def test_plugin_script_finds_the_filter_beside_itself(
    lua: Callable[[str], str], tmp_path: Any
) -> None:
    for name, text in render(config(), domain_pools(config(), expand)).items():
        (tmp_path / name).write_text(text)
    code = f"{HARNESS}\ndofile({to_lua(str(tmp_path / PLUGIN_SCRIPT))})\n"
    code += f"local job = {to_lua(UNSET)}\nslurm_job_submit(job, {to_lua(PARTITIONS)}, 1)\n"
    code += "print(job.partition)"
    assert lua(code) == ALL + "\n"


@given(text=st.text())
def test_any_text_survives_as_a_lua_string(text: str) -> None:
    quoted = to_lua(text)
    assert quoted.isascii()
    assert quoted.isprintable()
    for run in LUAS.values():
        code = f"for _, b in ipairs({{string.byte({quoted}, 1, -1)}}) do print(b .. '') end"
        assert bytes(int(line) for line in run(code).split()) == text.encode()


# accounts

OPEN = "ClusterName=test\nAccountingStorageType=accounting_storage/slurmdbd\n"
HELD = OPEN + "AccountingStorageEnforce=limits\n"


def on_site(tmp_path: Path, text: str) -> str:
    (tmp_path / "slurm.conf").write_text(text)
    site = siteconf.read(tmp_path / "slurm.conf")
    return render(config(), domain_pools(config(), expand), site)[FILTER]


@pytest.mark.parametrize(
    ("conf", "account", "expected"),
    [
        (OPEN, None, ALL),
        (OPEN, "physics", ALL),
        (OPEN, "Physics", ALL),
        (OPEN, "rich", "static,onprem"),
        (HELD, "rich", ALL),
    ],
)
def test_a_borrowed_account_leads_to_no_public_cloud(
    lua: Callable[[str], str], tmp_path: Path, conf: str, account: str | None, expected: str
) -> None:
    job: dict[str, Any] = {"default_account": "physics"}
    if account is not None:
        job["account"] = account
    assert listed(lua, job, text=on_site(tmp_path, conf)) == expected


def test_without_slurmdbd_nobody_knows_whose_an_account_is(
    lua: Callable[[str], str], tmp_path: Path
) -> None:
    text = on_site(tmp_path, "ClusterName=test\n")
    assert listed(lua, {"account": "rich"}, text=text) == ALL


@pytest.mark.parametrize(
    ("partition", "refused"),
    [("public", True), ("static,public", True), ("onprem", False), ("static", False)],
)
def test_a_borrowed_account_is_refused_where_it_names_a_public_cloud(
    lua: Callable[[str], str], tmp_path: Path, partition: str, *, refused: bool
) -> None:
    job = {"default_account": "physics", "account": "rich", "partition": partition}
    code = "\n".join(
        (
            HARNESS, "slurm.ERROR = -1", "slurm.log_user = slurm.log_error",
            on_site(tmp_path, OPEN), f"local job = {to_lua(UNSET | job)}",
            f"local partitions = {to_lua(PARTITIONS)}", SUBMIT,
        )
    )  # fmt: skip
    answer = lua(code)
    assert answer.splitlines()[0].endswith(" -1" if refused else " 0")
    assert ("is for your default account, physics" in answer) is refused
