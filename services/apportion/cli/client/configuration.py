"""Read the cluster's configuration, for verbs that read manifests or change the configuration.

Invariant: the configuration is read as of the ledger's end, so the newest one is never missed."""

import asyncio
import sys

from apportion.cli.client.connection import Where
from apportion.cli.client.gateway_client import WAIT_S, Gateway
from apportion.cli.client.ledger import open_ledger, run
from apportion.cli.exits import NotFound
from apportion.core.answers.reads import ConfigurationAnswer
from apportion.core.configuration import manifest_config, read_configuration
from apportion.core.configuration.collect_errors import every_error
from apportion.core.workloads.document import ManifestError
from apportion.core.workloads.pods.template import ManifestConfig
from apportion.runtime.files.manifests import Problem, read_manifest_files
from apportion_schemas import Configuration


async def configuration_now(where: Where) -> ConfigurationAnswer:
    """Return the configuration at the ledger's end. Raises LedgerError, Unreachable."""
    async with open_ledger(where.reach()) as ledger:
        newest = await ledger.last_revision()
    return await asyncio.to_thread(configuration_at, where, newest)


def configuration_at(where: Where, revision: int) -> ConfigurationAnswer:
    """Return the configuration at `revision` or later. Raises NotFound, Unreachable."""
    return Gateway(where.gateway_url()).ask(
        "configuration", answer=ConfigurationAnswer, query={"at_least": revision, "wait_s": WAIT_S}
    )


def manifest_config_now(where: Where) -> ManifestConfig:
    """Return the current settings for reading manifests. Raises NotFound, Unreachable."""
    return manifest_config(run(configuration_now(where)).configuration)


def read_configuration_file(file: str) -> tuple[object, Configuration]:
    """Return the raw document in a file and the configuration read from it. Raises NotFound."""
    found = list(read_manifest_files([file], sys.stdin.buffer))
    if problems := [str(each) for each in found if isinstance(each, Problem)]:
        raise NotFound("\n".join(problems))
    documents = [each for each in found if not isinstance(each, Problem)]
    if len(documents) != 1:
        raise NotFound(f"{file}: has {len(documents)} documents; write exactly one")
    (document,) = documents
    try:
        return document.content, read_configuration(document.content)
    except ManifestError:
        said = [
            str(Problem(file, str(error), line=document.parsed.line_of(error.field)))
            for error in every_error(document.content)
        ]
        raise NotFound("\n".join(said)) from None
