"""Numbers to scores: one paper, one file. Loads no model, reads no file, knows no cluster."""
