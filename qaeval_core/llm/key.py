"""Key: secrets that are read where they are used, and show themselves nowhere.

They are a key, headers of a file, or both. Whether a header is a secret is told by its name.

A file that others may open holds no secret, and an address beyond this machine that begins with
http:// hears it in clear: both are refused, unless asked for (``allow_insecure``).
"""

from __future__ import annotations

import codecs
import ipaddress
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from qaeval_core.errors import ConfigError
from qaeval_core.secret_names import is_secret_header
from qaeval_core.signature import hash_text
from qaeval_core.storage.files import expanded

KEY_VARIABLE = "OPENAI_API_KEY"
# Servers quote keys in their messages, some with stars in the middle.
_LOOKS_SECRET = re.compile(r"(?i)\bbearer\s+\S+|\b(?:sk|pk|key|hf|gsk|api)[-_][\w*.-]{6,}")
_HIDDEN = "<key>"
# Whose last word is the secret.
_SCHEME = re.compile(r"(?i)(?:bearer|basic|token|api-?key|key)\s+(?=\S+\Z)")
# Said by the client itself, or about what it sends.
_OWN_HEADERS = re.compile(
    "accept-encoding|connection|content-.*|host|te|trailer|transfer-encoding|upgrade"
    "|x-client-request-id"
)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_MAX_FILE_BYTES = 64 << 10
# Servers of one's own take any word for a key ("EMPTY", "ollama"), which replies may well hold.
_MIN_SECRET_CHARS = 8
_MIN_VALUE_CHARS = 4  # of headers: a message without every 1 helps nobody


class ApiKey:
    """A key, further headers, and where they came from; cannot be printed or pickled.

    Parameters
    ----------
    secret : str
        The key; "" where the headers have what lets requests in.
    source : str
        For messages.
    headers : mapping of str to str, optional
        Sent along.

    Examples
    --------
    >>> os.environ["DOCTEST_KEY"] = "sk-abcdef123456"
    >>> key = ApiKey.read(variable="DOCTEST_KEY")
    >>> key, key.scrub("401: sk-abcdef123456 is no key; nor is sk-abc***456")
    (ApiKey(the variable DOCTEST_KEY), '401: <key> is no key; nor is <key>')
    """

    __slots__ = ("_given", "_secret", "_secrets", "_values", "source")

    def __init__(
        self, secret: str, *, source: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.source = source
        self._secret = secret.strip()
        self._given = dict(headers or {})
        # A line end in a header would be refused by an error that quotes it.
        is_asked = bool(secret) or not self._given
        if is_asked and not re.fullmatch(r"[\x21-\x7e]+", self._secret):
            raise ConfigError(
                f"{source} does not hold a key: it must be one word of printable ASCII characters "
                "[QA0602]"
            )
        if self._secret and "authorization" in map(str.lower, self._given):
            raise ConfigError(
                f"{source} and headers_file both hold a key (Authorization); leave one out [QA0602]"
            )
        secrets = [value for name, value in self._given.items() if is_secret_header(name)]
        secrets += [_SCHEME.sub("", value, count=1) for value in secrets]
        self._secrets = _longest_first([self._secret, *secrets])
        self._values = _longest_first([*self._secrets, *self._given.values()])

    @classmethod
    def read(
        cls,
        *,
        path: str | Path | None = None,
        variable: str | None = None,
        headers_path: str | Path | None = None,
        allow_insecure: bool = False,
        section: str = "",
    ) -> ApiKey | None:
        """Return the key in a file, else in an environment variable, else None: no key is sent.

        A variable is not looked at where the headers of a file have a secret: it is for another
        server.

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
        headers: dict[str, str] = {}
        if headers_path is not None:
            headers = read_headers(headers_path, allow_insecure=allow_insecure, section=section)
        if path is not None:
            content = _read_file(path, "key", allow_insecure=allow_insecure, section=section)
            try:
                secret: str | None = content.decode("ascii")
            except UnicodeDecodeError:
                raise ConfigError(
                    f"the file {path} does not hold a key: it is not ASCII [QA0602]"
                ) from None
            return cls(secret or " ", source=f"the file {path}", headers=headers)
        if headers and (variable is None or any(map(is_secret_header, headers))):
            return cls("", source=f"the headers in {headers_path}", headers=headers)
        if variable is None:
            return None
        secret = os.environ.get(variable)
        if secret is None:
            raise ConfigError(
                f"no key: the variable {variable} is not set on this machine [QA0602]"
            )
        return cls(secret, source=f"the variable {variable}", headers=headers)

    @property
    def headers(self) -> dict[str, str]:
        """What a request is sent with."""
        key = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        return self._given | key

    def scrub(self, text: str) -> str:
        """Return a text without the key and values of headers, and without what looks like one."""
        for value in self._values:
            if value == self._secret or len(value) >= _MIN_VALUE_CHARS:
                text = text.replace(value, _HIDDEN)
        return scrub(text)

    def scrub_reply(self, text: str) -> str:
        """Return a model's text without secrets; what merely looks like one is the model's own.

        A key of fewer than 8 characters is no secret, and left: a reply must not change for it.
        Neither is the value of any other header: a title may well be the answer.
        """
        for value in self._secrets:
            if len(value) >= _MIN_SECRET_CHARS:
                text = text.replace(value, _HIDDEN)
        return text

    def account(self, base_url: str) -> str:
        """Return a short name of (server, key): calls with equal names share limits."""
        lines = [f"{name.lower()}: {value}" for name, value in self._given.items()]
        return account_name(base_url, secret="\n".join([self._secret, *sorted(lines)]))

    def __repr__(self) -> str:
        return f"ApiKey({self.source})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not sent between processes; send the path of its file")


def _longest_first(values: Iterable[str]) -> list[str]:
    """Return values, each once: one may be a part of another."""
    return sorted({*values} - {""}, key=len, reverse=True)


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


def read_headers(
    path: str | Path, *, allow_insecure: bool = False, section: str = ""
) -> dict[str, str]:
    """Return the headers in a file, a line ``Name: value`` each; # begins a remark.

    Raises
    ------
    ConfigError
        If it cannot be read, others may open it, or a line is none; values are not quoted.
    """
    content = _read_file(path, "headers", allow_insecure=allow_insecure, section=section)
    try:
        lines = content.decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"the headers in {path} are not ASCII [QA0602]") from None
    headers: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, value = (part.strip() for part in line.partition(":"))
        where = f"{path}, line {number}"
        if not (colon and _HEADER_NAME.fullmatch(name) and value.isprintable() and value):
            raise ConfigError(f"{where}: a header has the form `Name: value` [QA0602]")
        if _OWN_HEADERS.fullmatch(name.lower()):
            raise ConfigError(f"{where}: the client itself sends {name} [QA0602]")
        if name.lower() in map(str.lower, headers):
            raise ConfigError(f"{where}: {name} is given twice [QA0602]")
        headers[name] = value
    if not headers:
        raise ConfigError(f"{path} holds no header; its lines have the form `Name: value` [QA0602]")
    return headers


def check_key_file(path: str | Path, *, section: str = "") -> None:
    """Raise ConfigError for a file that others may open; one that is not here is not looked at."""
    try:
        mode = expanded(path).stat().st_mode
    except (OSError, ConfigError, ValueError):
        return  # Nodes that call may have it.
    _check_mode(path, mode, section)


def check_address(base_url: str, *, proxy: str | None = None, section: str = "") -> None:
    """Raise ConfigError where questions and the key would go beyond this machine in clear.

    >>> check_address("https://host/v1")
    >>> check_address("http://[::1]:8000/v1")
    >>> check_address("http://10.0.0.7:8000/v1")
    Traceback (most recent call last):
    ...
    qaeval_core.errors.ConfigError: http://10.0.0.7:8000/v1 is not encrypted: texts and the key \
would go to 10.0.0.7 in clear. Use https://, or allow it: --set allow_insecure=true [QA0602]
    """
    url = urlsplit(base_url)
    is_far = proxy is not None or not is_loopback(url.hostname or "")
    if url.scheme == "http" and is_far:
        host = url.hostname if proxy is None else urlsplit(proxy).hostname
        raise ConfigError(
            f"{base_url} is not encrypted: texts and the key would go to {host} in clear. Use "
            f"https://, or allow it: --set {section}allow_insecure=true [QA0602]"
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


def _read_file(path: str | Path, what: str, *, allow_insecure: bool, section: str) -> bytes:
    try:
        # Not blocking: a pipe that nobody writes into would hold the run for ever.
        file = os.open(expanded(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"cannot read the {what} in {path}: {error.strerror} [QA0602]") from None
    except ValueError as error:  # A name that none can have.
        raise ConfigError(f"cannot read the {what} in {path}: {error} [QA0602]") from None
    try:
        mode = os.fstat(file).st_mode
        if not stat.S_ISREG(mode):
            raise ConfigError(
                f"cannot read the {what} in {path}: it is not a regular file [QA0602]"
            )
        if not allow_insecure:
            _check_mode(path, mode, section, what)
        content = os.read(file, _MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise ConfigError(
                f"the {what} in {path} is a file of more than {_MAX_FILE_BYTES:,} bytes [QA0602]"
            )
        return content.removeprefix(codecs.BOM_UTF8)
    finally:
        os.close(file)


def _check_mode(path: str | Path, mode: int, section: str, what: str = "key") -> None:
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"other users may open the {what} in {path} (mode {stat.S_IMODE(mode):04o}): chmod 600 "
            f"it, or allow it: --set {section}allow_insecure=true [QA0602]"
        )
