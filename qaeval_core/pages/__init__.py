"""Pages: what all HTML pages share: style, charts, example rows."""

# Rows kept at each end of a column. Here, for the command line says it, and loads nothing else.
MAX_EXAMPLES = 20
