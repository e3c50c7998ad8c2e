"""Tests of `apportion config check`."""

from pathlib import Path

from click.testing import CliRunner

from apportion.cli.verbs.act.config import command
from tests.support.golden import Golden

CHART = """
nvidia: {resourceCountName: nvidia.com/gpu, libCudaLogLevel: 1, gpuCorePolicy: default}
hygon: {resourceCountName: hygon.com/dcunum}
"""


def test_what_has_no_effect_is_named_and_nothing_is_wrong(golden: Golden, tmp_path: Path) -> None:
    """`config check` lists settings without effect on standard error. The configuration still
    counts as valid."""
    file = tmp_path / "device-config.yaml"
    file.write_text(CHART)
    done = CliRunner().invoke(command, ["check", str(file)])
    assert (done.exit_code, ": valid\n" in done.stdout) == (0, True)
    named = [line.partition(":")[0] for line in done.stderr.splitlines()]
    assert named == ["nvidia.libCudaLogLevel", "nvidia.gpuCorePolicy", "hygon"]
    golden({"device-config.yaml": done.stderr})
