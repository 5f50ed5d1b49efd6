"""Strings to tokens. Knows no metric, no model and no file of scores."""
