"""Tokenizer file: a ``tokenizer.json`` of the tokenizers library, read and called in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from qaeval_core.errors import ModelError
from qaeval_core.text.token_runs import TokenRuns


class TokenizerFile:
    """A tokenizer that cuts nothing, pads nothing and adds no special tokens.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    tokenizer : Tokenizer

    Raises
    ------
    ModelError
        If it is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.tokenizer = Tokenizer.from_file(str(path))
        except BaseException as error:
            raise _refused(path, error) from None
        # Subtle: files carry truncation at 128 and padding to 128; both would be silent loss.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def encode(self, texts: Sequence[str]) -> TokenRuns:
        """Return the token ids of each text.

        Raises
        ------
        ModelError
            If the tokenizer gives up: a pattern of its own may take longer than it allows.
        """
        encodings = self._call(self.tokenizer.encode_batch_fast, texts)
        return TokenRuns.of([encoding.ids for encoding in encodings])

    def encodings(self, texts: Sequence[str]) -> list[Encoding]:
        """Return what the tokenizer knows of each text, places of tokens included.

        Raises
        ------
        ModelError
            As `encode` does.
        """
        return self._call(self.tokenizer.encode_batch, texts)

    def _call(self, encode: Callable[..., list[Encoding]], texts: Sequence[str]) -> list[Encoding]:
        try:
            return encode(list(texts), add_special_tokens=False)
        except BaseException as error:
            raise _refused(self._path, error) from None


def _refused(path: Path, error: BaseException) -> BaseException:
    """Return what to raise: a panic of the library is no Exception, nor is Ctrl-C."""
    is_panic = type(error).__name__ == "PanicException"
    if not isinstance(error, Exception) and not is_panic:
        return error
    if isinstance(error, MemoryError):
        return error
    return ModelError(
        f"{path} cannot be used: {next(iter(str(error).splitlines()), '')[:300]} [QA0418]"
    )
