"""Numbers: one number in digits and in words, and numbers that are taken for each other."""

from __future__ import annotations

import numpy as np

__all__ = ["number_words", "shift", "some_number", "two_numbers", "written"]

_ONES_TEXT = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_ONES = _ONES_TEXT.split()
_TENS_TEXT = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = _TENS_TEXT.split()


def number_words(number: int) -> str:
    """Return a number below one million in words.

    Examples
    --------
    >>> number_words(342)
    'three hundred and forty-two'
    >>> number_words(12000)
    'twelve thousand'
    """
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_ONES[ones]}" if ones else "")
    unit, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    high, rest = divmod(number, unit)
    words = f"{number_words(high)} {name}"
    if not rest:
        return words
    return f"{words} {'and ' if rest < 100 else ''}{number_words(rest)}"


def two_numbers(random: np.random.Generator) -> tuple[str, str, float]:
    """Return one number in two writings, or two numbers in any.

    Subtle: both in words must occur with different numbers. Where words only ever stand beside
    the same number in digits, a model learns that number words agree with everything.
    """
    number = some_number(random)
    if random.random() < 0.4:
        digits, words = f"{number:,}", number_words(number)
        return (digits, words, 1.0) if random.random() < 0.5 else (words, digits, 1.0)
    other = _other_number(random, number)
    return written(random, number), written(random, other), 0.05


def written(random: np.random.Generator, number: int) -> str:
    """Write a number, more often in words."""
    return f"{number:,}" if random.random() < 0.4 else number_words(number)


def _other_number(random: np.random.Generator, number: int) -> int:
    """Return a number that is near, ten times as large, or sounds alike: 14 and 40."""
    if 13 <= number <= 19 and random.random() < 0.4:
        return 10 * (number - 10)
    if number % 10 == 0 and 30 <= number <= 90 and random.random() < 0.4:
        return 10 + number // 10
    if random.random() < 0.2:
        return 10 * number
    return number + shift(random, number)


def some_number(random: np.random.Generator) -> int:
    """Draw a number below 10,000, mostly a small one or a round one."""
    number = int(10 ** random.uniform(0.31, 4 if random.random() < 0.3 else 2))
    return number if number < 100 or random.random() < 0.5 else round(number, 1 - len(str(number)))


def shift(random: np.random.Generator, size: int) -> int:
    """Return a difference, at least 1 and mostly small beside a number."""
    return 1 + int(random.integers(max(size // 3, 3)))
