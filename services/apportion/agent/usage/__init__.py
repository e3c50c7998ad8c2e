"""The containers' use of their shares: sampled, exported as metrics, and summed up every hour."""
