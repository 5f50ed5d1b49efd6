"""Key use: which key a run sends to whom, said and checked before models and a cluster start.

But: nodes that call look again at what they have (``llm.key``), and read the key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import urlsplit

from qaeval_core.config import RunConfig
from qaeval_core.llm.key import KEY_VARIABLE, check_address, check_key_file, is_loopback
from qaeval_core.metrics.chat import ChatSettings

_PROXY_VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")


def check_key_use(config: RunConfig) -> list[str]:
    """Return what to tell people of each key and host of a run, each once.

    Raises
    ------
    ConfigError
        If a key would go to another machine in clear, or lies in a file that others may open, and
        that is not allowed.
    """
    lines: dict[str, None] = {}
    for settings in config.metrics.values():
        if not isinstance(settings, ChatSettings) or settings.base_url is None:
            continue
        if not settings.allow_insecure:
            section = f"{settings.metric}."
            check_address(settings.base_url, proxy=settings.proxy, section=section)
            if settings.api_key_file is not None:
                check_key_file(settings.api_key_file, section=section)
        lines |= dict.fromkeys(_lines(settings, settings.base_url))
    return list(lines)


def _lines(settings: ChatSettings, base_url: str) -> Iterator[str]:
    url = urlsplit(base_url)
    is_far = not is_loopback(url.hostname or "")
    source = f"the file {settings.api_key_file}"
    if settings.api_key_file is None:
        source = f"the variable {KEY_VARIABLE}"
        if KEY_VARIABLE not in os.environ:
            source += ", on nodes that have it,"
    through = f", through the proxy {urlsplit(settings.proxy).netloc}" if settings.proxy else ""
    # To a server on this machine without a key in sight there is nothing to tell.
    if is_far or settings.api_key_file is not None or KEY_VARIABLE in os.environ:
        yield f"the key of {source} goes to {url.netloc}{through}"
    variables = [
        name for name in _PROXY_VARIABLES if name in os.environ or name.lower() in os.environ
    ]
    if is_far and variables and settings.proxy is None:
        yield f"{variables[0]} is not heeded: calls go through naco.proxy alone, which is not set"
