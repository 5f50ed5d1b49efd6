"""Key: a secret that is read where it is used, and shows itself nowhere."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NoReturn

from qaeval_core.errors import ConfigError
from qaeval_core.signature import hash_text

# Servers quote keys in their messages, some with stars in the middle.
_LOOKS_SECRET = re.compile(r"(?i)\bbearer\s+\S+|\b(?:sk|pk|key|hf|gsk|api)[-_][\w*.-]{6,}")
_HIDDEN = "<key>"
# Servers of one's own take any word for a key ("EMPTY", "ollama"), which replies may well hold.
_MIN_SECRET_CHARS = 8


class ApiKey:
    """A key and where it came from; cannot be printed or pickled.

    Examples
    --------
    >>> os.environ["DOCTEST_KEY"] = "sk-abcdef123456"
    >>> key = ApiKey.read(variable="DOCTEST_KEY")
    >>> key, key.scrub("401: sk-abcdef123456 is no key; nor is sk-abc***456")
    (ApiKey(the variable DOCTEST_KEY), '401: <key> is no key; nor is <key>')
    """

    __slots__ = ("_secret", "source")

    def __init__(self, secret: str, *, source: str) -> None:
        self.source = source
        self._secret = secret.strip()
        # A line end in a header would be refused by an error that quotes it.
        if not re.fullmatch(r"[\x21-\x7e]+", self._secret):
            raise ConfigError(
                f"{source} holds no key: it must be one word of printable ASCII characters"
            )

    @classmethod
    def read(cls, *, path: str | Path | None = None, variable: str | None = None) -> ApiKey | None:
        """Return the key in a file, else in an environment variable, else None: no key is sent.

        Raises
        ------
        ConfigError
            If the file or the variable is not there, or holds something else than a key.
        """
        if path is not None:
            try:
                return cls(Path(path).expanduser().read_text("ascii"), source=f"the file {path}")
            except OSError as error:
                raise ConfigError(f"cannot read the key in {path}: {error.strerror}") from None
            except UnicodeDecodeError:
                raise ConfigError(f"the file {path} holds no key: it is not ASCII") from None
        if variable is None:
            return None
        secret = os.environ.get(variable)
        if secret is None:
            raise ConfigError(f"no key: the variable {variable} is not set on this machine")
        return cls(secret, source=f"the variable {variable}")

    @property
    def headers(self) -> dict[str, str]:
        """What a request is sent with."""
        return {"Authorization": f"Bearer {self._secret}"}

    def scrub(self, text: str) -> str:
        """Return a text without the key, and without what looks like one."""
        return scrub(text.replace(self._secret, _HIDDEN))

    def scrub_reply(self, text: str) -> str:
        """Return a model's text without the key; what merely looks like one is the model's own.

        A key of fewer than 8 characters is no secret, and left: a reply must not change for it.
        """
        is_secret = len(self._secret) >= _MIN_SECRET_CHARS
        return text.replace(self._secret, _HIDDEN) if is_secret else text

    def account(self, base_url: str) -> str:
        """Return a short name of (server, key): calls with equal names share limits."""
        return account_name(base_url, secret=self._secret)

    def __repr__(self) -> str:
        return f"ApiKey({self.source})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not sent between processes; send the path of its file")


def scrub(text: str) -> str:
    """Return a text without what looks like a key.

    >>> scrub("Authorization: Bearer abc")
    'Authorization: <key>'
    """
    return _LOOKS_SECRET.sub(_HIDDEN, text)


def account_name(base_url: str, *, secret: str = "") -> str:
    """Return a short name of a server and a key, from which the key cannot be found.

    >>> account_name("http://localhost/v1") == account_name("http://localhost/v1/")
    True
    """
    return hash_text(f"{base_url.rstrip('/')}\n{secret}")
