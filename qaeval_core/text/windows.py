"""Windows: split a long text's token positions into stretches that fit a model.

Counts in, (start, stop) pairs out; no overlap, every token in exactly one window.
"""

from __future__ import annotations

from itertools import pairwise


def equal_windows(n_tokens: int, *, max_tokens: int) -> list[tuple[int, int]]:
    """Return the fewest windows that fit, of equal length; the first ones have a token more.

    Parameters
    ----------
    n_tokens : int
        Tokens of the text; 0 gives no window.
    max_tokens : int
        Tokens that fit one window; at least 1.

    Returns
    -------
    list of (int, int)
        Half-open ranges, in order, that tile 0..n_tokens.

    Examples
    --------
    >>> equal_windows(10, max_tokens=4)
    [(0, 4), (4, 7), (7, 10)]
    >>> equal_windows(4, max_tokens=4)
    [(0, 4)]
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}, at least 1 is needed")
    if n_tokens == 0:
        return []
    n_windows = -(-n_tokens // max_tokens)
    size, n_larger = divmod(n_tokens, n_windows)
    edges = [i * size + min(i, n_larger) for i in range(n_windows + 1)]
    return list(pairwise(edges))
