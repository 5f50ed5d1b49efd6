"""Token ids to small arrays: registry, artifacts, sessions and batches. Knows no metric."""
