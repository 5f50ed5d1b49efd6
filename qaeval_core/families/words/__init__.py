"""Words: the statistics that lexical metrics are computed from; no model runs."""
