"""What pods want of other pods: who is where, and what that refuses or prefers."""
