"""Apply limits on what pods use together: a queue's capability, a namespace's quota."""
