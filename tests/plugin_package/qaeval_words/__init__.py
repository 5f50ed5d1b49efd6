"""An entry in each of qaeval's groups."""
