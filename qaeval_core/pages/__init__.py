"""Pages: what all HTML pages share: style, charts, example rows."""
