"""Filter nodes for a pod: the filters, and the evaluator that applies them to a node."""
