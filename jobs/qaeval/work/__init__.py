"""Work: what the verbs do once their words are read; loaded then, not for ``--help``."""
