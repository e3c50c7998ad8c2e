"""The dialects of devices that only HAMi shares, one module per vendor."""
