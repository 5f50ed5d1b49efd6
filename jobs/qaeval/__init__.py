"""The verbs of qaeval, on Ray: the only importer of ray. No arithmetic."""
