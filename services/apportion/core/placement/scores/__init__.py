"""The scores: how nodes and devices that fit are preferred.

A node score maps rows to points, 0 to `columns.POINTS`, more is better; a device order sorts the
devices of the chosen node, first is best. Both are looked up by the policy's name.
"""

from apportion.core.placement.scores import devices, nodes

NODE_SCORES = dict.fromkeys(("binpack", "fgd", "price"), nodes.binpack) | {
    "spread": nodes.spread
}
DEVICE_ORDERS = dict.fromkeys(("binpack", "fgd", "price"), devices.binpack) | {
    "spread": devices.spread
}
