"""Words: the statistics that metrics of words are computed from; no model runs."""
