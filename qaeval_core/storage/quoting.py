"""Quoting: names as they stand in URIs, the one place for it."""

from __future__ import annotations

from urllib.parse import quote

# What stands for itself in the path of a URI (RFC 3986), beside letters, digits and "-._~".
_PLAIN = "/!$&'()*+,;=:@"


def quoted(name: str) -> str:
    """Return a name as it stands in a URI: PyArrow's parser and ours read the same out of it.

    Examples
    --------
    >>> quoted("lang=de/c%.parquet"), quoted("größe?[1]")
    ('lang=de/c%25.parquet', 'gr%C3%B6%C3%9Fe%3F%5B1%5D')
    """
    return quote(name, safe=_PLAIN)
