"""The admission webhook, which judges pods for the API server before it stores them.

It serves a certificate from cert-manager, the chart or the operator, and has no rights at the
API server. It reads only the configuration from the ledger and writes nothing there."""
