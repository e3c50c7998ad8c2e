"""The configuration that the cluster obeys now, for verbs that read manifests or change it.

Invariant: it is the gateway's, folded up to the ledger's end, so a document that was applied a
moment ago is never missed, and one that every fold refuses is never obeyed.
"""

from __future__ import annotations

import asyncio

from apportion.cli.client.connection import Where
from apportion.cli.client.gateway_client import Gateway
from apportion.cli.client.ledger import open_ledger, run
from apportion.cli.pods.append import WAIT_S
from apportion.core.configuration import manifest_config
from apportion.core.explain.answers import ConfigurationAnswer
from apportion.core.workloads.pods.template import ManifestConfig


async def configuration_now(where: Where) -> ConfigurationAnswer:
    """The configuration in force at the ledger's end. Raises LedgerError, Unreachable."""
    async with open_ledger(where.reach()) as ledger:
        newest = await ledger.last_revision()
    return await asyncio.to_thread(configuration_at, where, newest)


def configuration_at(where: Where, revision: int) -> ConfigurationAnswer:
    """The configuration at this revision or a later one. Raises NotFound, Unreachable."""
    query = {"at_least": revision, "wait_s": WAIT_S}
    return Gateway(where.gateway_url()).ask(
        "configuration", answer=ConfigurationAnswer, query=query
    )


def manifest_config_now(where: Where) -> ManifestConfig:
    """How manifests are read in the cluster now. Raises NotFound, Unreachable."""
    return manifest_config(run(configuration_now(where)).configuration)
