"""The filters that exclude nodes for a pod, and the evaluator that applies them to a node."""
