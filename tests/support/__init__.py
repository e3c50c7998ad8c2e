"""What tests share: builders, servers, polling."""
