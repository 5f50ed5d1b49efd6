"""Recipes: how shipped adapters were made. For developers; not part of the installed package."""
