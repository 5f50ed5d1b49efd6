"""Explain: tokens as pieces of their text, so that the pieces joined are the text again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer


class TextPieces:
    """Cuts texts where a model's tokenizer does.

    Parameters
    ----------
    tokenizer_path : Path
        A ``tokenizer.json``, as in an artifact.
    """

    def __init__(self, tokenizer_path: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer_path))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def cut(self, text: str, *, n_before: int = 0) -> list[str]:
        """Return one piece per token; joined they are the text from ``n_before`` on.

        Parameters
        ----------
        text : str
            As the model reads it.
        n_before : int, default 0
            Characters at the start that are not the text's own, such as a space put before it.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        stops = [stop - n_before for _, stop in encoding.offsets]
        return cut_at(text[n_before:], stops)


def cut_at(text: str, stops: Sequence[int]) -> list[str]:
    """Return a text cut after each token's last character.

    What a tokenizer skips (spaces, control characters) goes to the token after it, what is left at
    the end to the last one. A character of several tokens goes to the first of them; the others
    are empty.

    Examples
    --------
    >>> cut_at("Is it? ", [2, 5, 6])
    ['Is', ' it', '? ']
    >>> cut_at("öl", [1, 1, 2])
    ['ö', '', 'l']
    >>> cut_at("", [])
    []
    """
    pieces = []
    position = 0
    for stop in stops:
        end = max(position, min(stop, len(text)))
        pieces.append(text[position:end])
        position = end
    if pieces:
        pieces[-1] += text[position:]
    return pieces
