"""Families: rows to raw statistics, one module a family; metrics read them by name."""
