"""Tests that the committed code for the kubelet's messages is generated, not edited by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import generated

ROOT = Path(__file__).resolve().parents[2]
DESCRIBED = (
    ("services", "apportion/agent/kubelet/kubelet.proto"),
    (".", "tests/support/cri/cri.proto"),
)


@pytest.mark.parametrize(("base", "proto"), DESCRIBED)
def test_the_committed_messages_are_the_generated_ones(
    base: str, proto: str, tmp_path: Path
) -> None:
    """The committed code is what protoc generates from the .proto file."""
    generate = [sys.executable, "-m", "grpc_tools.protoc", "-I", base, f"--python_out={tmp_path}"]
    subprocess.run([*generate, f"{base}/{proto}"], check=True, cwd=ROOT)
    name = proto.replace(".proto", "_pb2.py")
    made = {str(Path(base, name)): (tmp_path / name).read_text()}
    generated.assert_none(generated.outdated(made))
