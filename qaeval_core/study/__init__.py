"""Studies: which metric agrees with people, and how surely."""
