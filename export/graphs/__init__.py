"""Modules that reduce inside the graph. The only place for torch arithmetic."""
