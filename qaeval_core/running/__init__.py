"""Running: rows through families to commits, here or on workers of a cluster."""
