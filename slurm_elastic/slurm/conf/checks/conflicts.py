"""The options of a site's slurm.conf that conflict with our fragment. Pure.

If an option has two values, Slurm uses the last one and says so only in the log of slurmctld
(measured on 22.05 to 26.05). We therefore report each such case before anything is written, with
both values and the site's file and line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.base.account import same_account
from slurm_elastic.base.hostlist import compress
from slurm_elastic.config import Config
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.model.cluster import Pool
from slurm_elastic.policies.launch.verdict import features
from slurm_elastic.slurm.client import confvalues
from slurm_elastic.slurm.client.siteconf import ConfRecord, Entry, SiteConf
from slurm_elastic.slurm.conf import allowed_partitions

NODE_RESETS = {
    "boards": "1",
    "sockets": "1",
    "socketsperboard": "1",
    "threadspercore": "1",
    "corespeccount": "0",
    "memspeclimit": "0",
    "tmpdisk": "0",
    "cpubind": "none",
    "reason": '""',
    "gres": '""',
}
"""Slurm's defaults of options that NodeName=DEFAULT may set and our nodes must not inherit."""

SOCKET_KEYS = frozenset({"boards", "sockets", "socketsperboard"})
"""Our nodes need CoresPerSocket, too, if NodeName=DEFAULT sets any of these options."""

_NODE_SET_BY_US = frozenset(
    {
        "corespersocket",
        "cpus",
        "feature",
        "features",
        "port",
        "procs",  # Slurm's older word for CPUs, which ours set
        "realmemory",
        "state",
        "weight",
    }
)


def conflicts_of(config: Config, pools: Sequence[Pool], site: SiteConf) -> list[str]:
    """One sentence for each conflict. Empty if fragment and site fit together."""
    return [
        *_cluster(config, site),
        *_names(config, pools, site),
        *_lone_localhost(site),
        *_spills_over(pools, site),
        *_lists_all(site),
        *_programs(config, site),
        *_waits_for_itself(config, site),
        *_suspends_static(site),
        *_node_defaults(site),
        *_unequal_priority(site),
        *allowed_partitions.conflicts(config, site),
        *_node_count(pools, site),
    ]


def programs_of(config: Config) -> dict[str, str]:
    """The scalar options of the fragment: Slurm's name and our value."""
    base = config.slurm.programs_dir.rstrip("/")
    return {
        "ResumeProgram": f"{base}/slurm-elastic-resume",
        "SuspendProgram": f"{base}/slurm-elastic-suspend",
        "ResumeFailProgram": f"{base}/slurm-elastic-resume-fail",
        # 0 is no limit. By default Slurm resumes 300 nodes and suspends 60 a minute.
        "ResumeRate": "0",
        "SuspendRate": "0",
    }


def _cluster(config: Config, site: SiteConf) -> Iterator[str]:
    name = site.option("ClusterName")
    if name is None:
        yield f"{site.path}: ClusterName is not set; slurm-elastic's cluster.name must equal it"
    # Slurm writes cluster names in lower case everywhere.
    elif name.value.lower() != config.cluster.name.lower():
        yield (
            f"{name.location}: ClusterName is {name.value}, slurm-elastic has {config.cluster.name}"
        )
    user = site.option("SlurmUser")
    # slurmctld runs as root if slurm.conf has no SlurmUser (slurm.conf(5)).
    owner = user.value if user else "root"
    where = user.location if user else site.path
    if not same_account(owner, config.slurm.user):
        yield f"{where}: SlurmUser is {owner}, slurm-elastic's slurm.user is {config.slurm.user}"


def _names(config: Config, pools: Sequence[Pool], site: SiteConf) -> Iterator[str]:
    lines = site.node_names
    for pool in pools:
        for node in pool.nodes:
            if node in lines:
                yield f"{lines[node]}: node {node} is the site's own; pool {pool.name} names it too"
    partitions = {name: p.location for p in site.partitions for name in p.names}
    partitions |= {name: n.location for n in site.nodesets for name in n.names}
    for cloud in config.clouds:
        name = cloud.partition_name
        if name in partitions:
            yield (
                f"{partitions[name]}: {name} is the site's own; cloud {cloud.name} uses it too;"
                " give that cloud another `partition` or `name` in slurm-elastic.yaml"
            )


def _lone_localhost(site: SiteConf) -> Iterator[str]:
    """Report a first node named localhost. While it is the only node, Slurm looks it up by every
    new name, and takes the next node for its double (node_conf.c, 22.05 to master).
    """
    for name, where in list(site.node_names.items())[:1]:
        if name == "localhost":
            yield (
                f"{where}: a first node named localhost can only be a cluster's only one: Slurm"
                " takes every further node for it (Duplicated NodeHostName); give it another"
                " name, as NodeName=n1 NodeHostname=localhost"
            )


def _spills_over(pools: Sequence[Pool], site: SiteConf) -> Iterator[str]:
    """Report site partitions and node sets that our nodes would join without notice."""
    for kind, records in (("partition", site.partitions), ("node set", site.nodesets)):
        for record in records:
            if "ALL" in record.get("nodes").upper().split(","):
                yield (
                    f"{record.location}: {kind} {record.names[0]} has Nodes=ALL and would take in"
                    " cloud nodes; name its nodes instead"
                )
    our_features = {feature for pool in pools for feature in features(pool)}
    for nodeset in site.nodesets:
        feature = nodeset.get("feature")
        if feature in our_features:
            own_nodes = compress(_nodes_with(feature, site)) or "your nodes"
            yield (
                f"{nodeset.location}: node set {nodeset.names[0]} takes nodes by the feature"
                f" {feature}, which cloud nodes have; rename one of them, or name its nodes:"
                f" NodeSet={nodeset.names[0]} Nodes={own_nodes}"
            )


def _nodes_with(feature: str, site: SiteConf) -> Iterator[str]:
    for record in site.nodes:
        listed = record.get("feature") or record.get("features")
        if feature in listed.split(","):
            yield from record.names


def _lists_all(site: SiteConf) -> Iterator[str]:
    """Report job_submit/all_partitions, which knows none of the submit filter's reasons to keep a
    job from a cloud. With EnforcePartLimits=ALL each listed partition must be able to hold the job,
    and must have its nodes of ``-w`` (22.05 and 25.11, measured).
    """
    entry = site.option("JobSubmitPlugins")
    if entry is not None and "all_partitions" in site.items("JobSubmitPlugins"):
        yield (
            f"{entry.location}: JobSubmitPlugins has all_partitions, which adds every cloud to each"
            " job that names no partition, also if the submit filter keeps the job from clouds;"
            " with EnforcePartLimits=ALL Slurm refuses the job if one cloud cannot hold it. Take it"
            " out: the submit filter adds the clouds that fit"
        )


def _programs(config: Config, site: SiteConf) -> Iterator[str]:
    for name, our_program in programs_of(config).items():
        entry = site.option(name)
        if entry is not None and entry.value != our_program:
            yield f"{entry.location}: {name} is {entry.value}, slurm-elastic needs {our_program}"


def _waits_for_itself(config: Config, site: SiteConf) -> Iterator[str]:
    """Report PrologFlags=RunInJob (24.05 and later) beside wipe and copied files. The Epilog then
    runs in a step of the job. It waits until the files are back, and the copy back waits for the
    end of all steps of the job.
    """
    entry = site.option("PrologFlags")
    flags = entry.value.lower().split(",") if entry is not None else []
    copies = any(cloud.data is Data.COPY for cloud in config.clouds)
    if entry is not None and "runinjob" in flags and copies and config.join.wipe:
        yield (
            f"{entry.location}: PrologFlags has RunInJob; with join.wipe and data: copy the Epilog"
            " and the copy of the job's files would wait for each other, so remove RunInJob or"
            " join.wipe"
        )


def _suspends_static(site: SiteConf) -> Iterator[str]:
    """Report a finite SuspendTime, by which slurmctld would suspend the site's own idle nodes,
    too.
    """
    entry = site.option("SuspendTime")
    if entry is not None and not confvalues.never_suspends(entry.value):
        yield _suspend_sentence("SuspendTime", entry)
    for partition in site.partitions:
        yield from _suspends_partition(partition)
    for node in site.nodes:  # 26.05 has SuspendTime of a node, too
        entry = node.values.get("suspendtime")
        if entry is not None and not confvalues.never_suspends(entry.value, of_partition=True):
            yield _suspend_sentence(f"SuspendTime of node {node.names[0]}", entry)


def _suspends_partition(partition: ConfRecord) -> Iterator[str]:
    entry = partition.values.get("suspendtime")
    if entry is not None and not confvalues.never_suspends(entry.value, of_partition=True):
        yield _suspend_sentence(f"SuspendTime of partition {partition.names[0]}", entry)
    entry = partition.values.get("powerdownonidle")
    if entry is not None and confvalues.is_true(entry.value):
        yield _suspend_sentence(
            f"PowerDownOnIdle of partition {partition.names[0]}", entry, expected="NO"
        )


def _suspend_sentence(option: str, entry: Entry, *, expected: str = "INFINITE") -> str:
    return (
        f"{entry.location}: {option} is {entry.value}; with slurm-elastic's SuspendProgram it would"
        f" power down the site's own nodes, so it must be {expected} or absent"
    )


def _node_defaults(site: SiteConf) -> Iterator[str]:
    handled_keys = _NODE_SET_BY_US | NODE_RESETS.keys()
    for key, entry in site.node_defaults.items():
        if key not in handled_keys:
            yield (
                f"{entry.location}: NodeName=DEFAULT sets {entry.name}={entry.value}, which cloud"
                " nodes would inherit; set it on the site's own NodeName lines instead"
            )


def _unequal_priority(site: SiteConf) -> Iterator[str]:
    """Report a Priority in PartitionName=DEFAULT that our lines cannot replace. Priority sets both
    PriorityTier and PriorityJobFactor, and wins over these options of our lines.
    """
    entry = site.partition_defaults.get("priority")
    tier, factor = site.priority_tier, site.priority_job_factor
    if entry is not None and tier != factor:
        yield (
            f"{entry.location}: PartitionName=DEFAULT sets Priority={entry.value}, which cloud"
            f" partitions would inherit; the default partition has PriorityTier={tier} and"
            f" PriorityJobFactor={factor}; write these two instead of Priority"
        )


def _node_count(pools: Sequence[Pool], site: SiteConf) -> Iterator[str]:
    entry = site.option("MaxNodeCount")
    max_count = confvalues.number(entry.value) if entry else None
    if entry is None or max_count is None:
        return
    our_count, own_count = sum(len(pool.nodes) for pool in pools), len(site.node_names)
    if our_count + own_count > max_count:
        yield (
            f"{entry.location}: MaxNodeCount is {entry.value};"
            f" {own_count} own and {our_count} cloud nodes need {own_count + our_count}"
        )
