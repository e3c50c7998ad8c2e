"""What a label selector selects, once it is read: the one place where its operators mean something.

Source: `LabelSelector` of Kubernetes. Invariant: no expression at all selects everything.
"""

from collections.abc import Iterable, Mapping

from apportion_schemas import LabelExpression


def meet(labels: Mapping[str, str], expressions: Iterable[LabelExpression]) -> bool:
    """Whether these labels meet every expression."""
    return all(_holds(expression, labels) for expression in expressions)


def _holds(expression: LabelExpression, labels: Mapping[str, str]) -> bool:
    value = labels.get(expression.key)
    match expression.operator:
        case "In":
            return value in expression.values
        case "NotIn":
            return value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
