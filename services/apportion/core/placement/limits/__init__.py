"""Limit what pods use in total: a queue's capability, a namespace's quota."""
