"""Statistics of scores: summaries with uncertainty."""
