"""Key: a secret that is read where it is used, and shows itself nowhere.

A file that others may open holds no secret, and an address beyond this machine that begins with
http:// hears it in clear: both are refused, unless asked for (``allow_insecure``).
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from qaeval_core.errors import ConfigError
from qaeval_core.signature import hash_text

KEY_VARIABLE = "OPENAI_API_KEY"
# Servers quote keys in their messages, some with stars in the middle.
_LOOKS_SECRET = re.compile(r"(?i)\bbearer\s+\S+|\b(?:sk|pk|key|hf|gsk|api)[-_][\w*.-]{6,}")
_HIDDEN = "<key>"
_MAX_FILE_BYTES = 64 << 10
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
    def read(
        cls,
        *,
        path: str | Path | None = None,
        variable: str | None = None,
        allow_insecure: bool = False,
        section: str = "",
    ) -> ApiKey | None:
        """Return the key in a file, else in an environment variable, else None: no key is sent.

        Parameters
        ----------
        allow_insecure : bool, default False
            Whether others than the file's owner may open it.
        section : str, default ""
            Of the settings that messages name, with its dot.

        Raises
        ------
        ConfigError
            If the file or the variable is not there, or holds something else than a key.
        """
        if path is not None:
            content = _read_file(path, allow_insecure=allow_insecure, section=section)
            try:
                return cls(content.decode("ascii"), source=f"the file {path}")
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


def check_key_file(path: str | Path, *, section: str = "") -> None:
    """Raise ConfigError for a file that others may open; one that is not here is not looked at."""
    try:
        mode = Path(path).expanduser().stat().st_mode
    except (OSError, RuntimeError, ValueError):
        return  # Nodes that call may have it.
    _check_mode(path, mode, section)


def check_address(base_url: str, *, proxy: str | None = None, section: str = "") -> None:
    """Raise ConfigError where questions and the key would go beyond this machine in clear.

    >>> check_address("https://host/v1")
    >>> check_address("http://[::1]:8000/v1")
    >>> check_address("http://10.0.0.7:8000/v1")
    Traceback (most recent call last):
    ...
    qaeval_core.errors.ConfigError: http://10.0.0.7:8000/v1 is not encrypted: passages and the key \
would go to 10.0.0.7 in clear. Use https://, or allow it: --set allow_insecure=true
    """
    url = urlsplit(base_url)
    is_far = proxy is not None or not is_loopback(url.hostname or "")
    if url.scheme == "http" and is_far:
        host = url.hostname if proxy is None else urlsplit(proxy).hostname
        raise ConfigError(
            f"{base_url} is not encrypted: passages and the key would go to {host} in clear. "
            f"Use https://, or allow it: --set {section}allow_insecure=true"
        )


def is_loopback(host: str) -> bool:
    """Whether what is sent to a host stays on this machine.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.9", "::1", "localhost.evil.com")]
    [True, True, True, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def _read_file(path: str | Path, *, allow_insecure: bool, section: str) -> bytes:
    try:
        # Not blocking: a pipe that nobody writes into would hold the run for ever.
        file = os.open(Path(path).expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"cannot read the key in {path}: {error.strerror}") from None
    except (RuntimeError, ValueError) as error:  # No such home, or a name that none can have.
        raise ConfigError(f"cannot read the key in {path}: {error}") from None
    try:
        mode = os.fstat(file).st_mode
        if not stat.S_ISREG(mode):
            raise ConfigError(f"cannot read the key in {path}: it is no regular file")
        if not allow_insecure:
            _check_mode(path, mode, section)
        return os.read(file, _MAX_FILE_BYTES)
    finally:
        os.close(file)


def _check_mode(path: str | Path, mode: int, section: str) -> None:
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"others may open the key in {path} (mode {stat.S_IMODE(mode):04o}): chmod 600 it, or "
            f"allow it: --set {section}allow_insecure=true"
        )
