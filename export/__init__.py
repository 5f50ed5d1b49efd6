"""Torch models to artifacts; run as ``python -m export``, imported by nothing."""
