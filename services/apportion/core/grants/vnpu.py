"""Ascend NPUs: whole, or cut by a template that Ascend's runtime makes when the container starts.

`ASCEND_VISIBLE_DEVICES` names NPUs by their index and `ASCEND_VNPU_SPECS` the template (Ascend
Docker Runtime). A container with a template has one NPU: the runtime cuts no other one.
"""

from apportion.core.grants.edits import Edits
from apportion.core.grants.held import GrantRefused, Held, Node
from apportion.core.grants.plan import Grant


def grant(held: Held, node: Node) -> Grant:  # noqa: ARG001 - every mode is asked alike
    """The NPUs by index, and the template.

    Raises:
        GrantRefused: a template together with a second NPU.
    """
    env = {"ASCEND_VISIBLE_DEVICES": ",".join(str(part.device.index) for part in held.parts)}
    templates = [part.share.template for part in held.parts if part.share.template]
    if templates and len(held.parts) > 1:
        raise GrantRefused(
            f"container {held.container!r} of pod {held.pod} holds {len(held.parts)} NPUs, one of "
            f"them cut by {templates[0]}; Ascend's runtime cuts the only one of a container"
        )
    if templates:
        env["ASCEND_VNPU_SPECS"] = templates[0]
    return Grant(Edits(env))
