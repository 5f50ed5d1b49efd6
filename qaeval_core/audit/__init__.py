"""Audit: whether the scores of a corpus moved between two runs, from profiles of them alone."""
