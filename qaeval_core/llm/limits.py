"""Limits: what a key allows in a window, and what calls cost in tokens and money.

Limits belong to an account, a server and a key; money belongs to a budget (``llm.budget``).

But: when calls may be sent is ``llm.schedule``'s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qaeval_core.errors import ConfigError

# ``role`` and ``content``.
Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a key allows; None is unlimited.

    Parameters
    ----------
    requests_per_minute : int or None
        Requests in any window of ``window_s``; inclusive.
    tokens_per_minute : int or None
        Tokens in any window, prompt and ``max_tokens`` counted when a call is sent; inclusive.
    window_s : float, default 60
        Length of the server's window; another one scales a minute down, in tests.
    jitter_share : float, default 0.02
        J / W: how much later than its send time a call may arrive. Half of it is for whoever sends
        (who asks again when it wakes later), half for the network: 0.6 s each in a minute.

    Raises
    ------
    ConfigError
        If a limit is not positive.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    window_s: float = 60.0
    jitter_share: float = 0.02

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute", "window_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(
                    f"{name} is {value}; a limit must be above 0, or left out [QA0609]"
                )

    @property
    def jitter_s(self) -> float:
        """J: how late a call may arrive, in seconds."""
        return self.jitter_share * self.window_s

    @property
    def span_s(self) -> float:
        """S = W + J, in seconds."""
        return self.window_s + self.jitter_s

    @classmethod
    def smallest(cls, several: Iterable[Limits]) -> Limits:
        """Return limits that keep all of several, of which there is at least one.

        Raises
        ------
        ConfigError
            If they count in windows of different lengths.

        Examples
        --------
        >>> both = Limits.smallest([Limits(600, 90_000), Limits(requests_per_minute=60)])
        >>> both.requests_per_minute, both.tokens_per_minute
        (60, 90000)
        """
        every = list(several)
        lengths = sorted({limits.window_s for limits in every})
        if len(lengths) > 1:
            raise ConfigError(
                f"runs with one key count in windows of {lengths[0]:g} s and {lengths[-1]:g} s; a "
                "server has one [QA0609]"
            )
        return cls(
            requests_per_minute=_least(limits.requests_per_minute for limits in every),
            tokens_per_minute=_least(limits.tokens_per_minute for limits in every),
            window_s=lengths[0],
            jitter_share=max(limits.jitter_share for limits in every),
        )


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


NANO = 1_000_000_000  # of a dollar: sums of integers are exact
# What a server's chat template adds: its marks around each message, and a text of its own.
_TEMPLATE_TOKENS = 208
_TEMPLATE_TOKENS_PER_MESSAGE = 16
# What the endpoint adds around a message, and before the reply.
_TOKENS_PER_MESSAGE = 5
_TOKENS_PER_PROMPT = 5
# One match is one token; the second alternative goes on within a word.
_TOKEN = re.compile(
    rb"(?<![a-z])[A-Z]?[a-z]{1,7}|[a-z]{1,3}|[A-Z]{1,3}|[0-9]|[\x80-\xff]{1,2}|\s{2,}|[^ ]"
)


@dataclass(frozen=True, slots=True)
class Prices:
    """What a server charges, in dollars per million tokens."""

    prompt_usd_per_million: float = 0.0
    completion_usd_per_million: float = 0.0

    def cost_usd(self, *, n_prompt_tokens: int, n_completion_tokens: int) -> float:
        """Return what a call costs.

        >>> Prices(0.5, 2.0).cost_usd(n_prompt_tokens=1_000_000, n_completion_tokens=1000)
        0.502
        """
        prompt = n_prompt_tokens * self.prompt_usd_per_million
        return (prompt + n_completion_tokens * self.completion_usd_per_million) / 1e6


class Estimates:
    """Scales estimates of prompts up to the most that a server counted, in estimates.

    Examples
    --------
    >>> estimates = Estimates()
    >>> estimates.learn(100, counted=90)
    >>> estimates.learn(100, counted=120)
    >>> estimates.scaled(200)
    240
    """

    def __init__(self) -> None:
        self._scale = 1.0

    def scaled(self, n_tokens: int) -> int:
        """Return an estimate that would have been enough for all prompts so far."""
        return math.ceil(n_tokens * self._scale)

    def learn(self, n_tokens: int, *, counted: int) -> None:
        """Hear what a server counted for an estimate."""
        self._scale = max(self._scale, counted / max(n_tokens, 1))


def most_prompt_tokens(messages: Sequence[Mapping[str, str]]) -> int:
    """Return a bound on the tokens of a prompt, for money, which must not be reserved too low.

    A token stands for one byte at least. For English it is four times too high, which costs no
    throughput: limits go by estimates.

    Examples
    --------
    >>> most_prompt_tokens([{"role": "user", "content": "Wer trägt es?"}])
    238
    """
    n_bytes = sum(len(message["content"].encode("utf-8", "surrogatepass")) for message in messages)
    return n_bytes + _TEMPLATE_TOKENS_PER_MESSAGE * len(messages) + _TEMPLATE_TOKENS


def estimate_tokens(messages: Sequence[Mapping[str, str]]) -> int:
    """Return about how many tokens an endpoint counts in messages, rather too many than too few.

    Tokenizers of endpoints are not at hand, so tokens are told by their looks: a word has one for
    its first seven small letters (a capital before them is free) and one for each three more;
    three capitals, a digit, a sign, or two bytes of another script are one each; so is white
    space, but for a single blank. A few come on top for each message.

    Returns
    -------
    int
        In English prose 1.1 to 1.2 times the tokens of large vocabularies (GPT-4, GPT-4o, Llama 3,
        Qwen 3), in German 0.9 to 1.1 times, in Chinese 1.2 to 2 times. Too few for strings of
        random letters (half), for emoji (0.7 times in the worst case) and, outside English, for
        small vocabularies of English models (0.6 times).

    Examples
    --------
    >>> estimate_tokens([{"role": "user", "content": "Who designed the Orrin Bridge in 1931?"}])
    22
    >>> estimate_tokens([])
    5
    """
    n_tokens = sum(
        len(_TOKEN.findall(message["content"].encode("utf-8", "surrogatepass")))
        for message in messages
    )
    return n_tokens + _TOKENS_PER_MESSAGE * len(messages) + _TOKENS_PER_PROMPT


def dollars(usd: float) -> str:
    """Return money with four digits that count, and cents at least.

    Examples
    --------
    >>> [dollars(usd) for usd in (0.0, 0.012344, 0.5, 1234.567, 0.00000012)]
    ['$0.00', '$0.01234', '$0.50', '$1,234.57', '$0.00000012']
    """
    n_decimals = 2 if usd == 0 else min(max(3 - math.floor(math.log10(abs(usd))), 2), 9)
    units, _, decimals = f"{usd:,.{n_decimals}f}".partition(".")
    return f"${units}.{decimals.rstrip('0'):0<2}"
