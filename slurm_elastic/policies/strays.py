"""Machines that are paid, but that no node of the configuration stands for. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping

from slurm_elastic.model import Instance, Pool


def stray(instance: Instance, clouds: Container[str], pool_of: Mapping[str, Pool]) -> str | None:
    """Why nobody serves the machine; None where its cloud has its node."""
    if instance.cloud not in clouds:
        return f"the configuration has no cloud {instance.cloud} any more"
    if not instance.node:
        return "its tags name no node"
    pool = pool_of.get(instance.node)
    if pool is None or pool.cloud != instance.cloud:
        return f"no pool of cloud {instance.cloud} has node {instance.node} any more"
    return None
