"""The admission webhook: the API server calls it to check pods before it stores them.

The webhook serves a certificate from cert-manager, the chart or the operator, and has no rights at
the API server. From the ledger it reads only the configuration, and writes nothing there."""
