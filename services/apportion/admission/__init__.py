"""The admission webhook: what an API server asks before it takes a pod.

A service of its own, so that its account alone may touch a certificate and a webhook's set-up. Of
the ledger it reads the configuration and nothing else, and it writes nothing there.
"""
