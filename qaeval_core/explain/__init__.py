"""Explain: why one row of a finished run has its scores, computed again and shown."""
