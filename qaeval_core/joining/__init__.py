"""Joining: commits and the input to scores, without a model."""
