"""Torch models to artifacts; run as ``python -m qaeval_export``, imported by nothing."""

# First, for its package turns the telemetry of ONNX Runtime off, which begins as that is loaded.
import qaeval_core.errors  # noqa: F401
