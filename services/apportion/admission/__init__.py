"""The admission webhook: what an API server asks before it takes a pod.

It serves the certificate that cert-manager, the chart or a person provides, and has no right at the
API server. Of the ledger it reads the configuration and nothing else, and it writes nothing there.
"""
