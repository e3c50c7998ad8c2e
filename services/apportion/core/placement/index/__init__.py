"""The nodes as columns, asked in loops: what makes a decision cost what changed."""
