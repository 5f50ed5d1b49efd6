"""Torch models to artifacts; run as ``python -m qaeval_export``, imported by nothing."""
