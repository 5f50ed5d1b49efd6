"""Rules: pairs of short answers whose likeness needs no model to tell.

Numbers in digits and in words, dates in two orders, units, decades and centuries, other names of a
country or body, yes and no. Scores say how much the meaning agrees: 1 the same, .9 the same for
most readers, .5 one part of the other, .1 another fact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

__all__ = ["number_words", "rule_pairs"]

RulePair = tuple[str, str, float]


def _listed(words: str) -> tuple[str, ...]:
    return tuple(words.split())


_ONES = _listed(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_TENS = _listed("twenty thirty forty fifty sixty seventy eighty ninety")
_ORDINALS = _listed(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth twenty-first"
)
_MONTHS = _listed(
    "January February March April May June July August September October November December"
)
_THINGS = _listed(
    "students people years days members countries soldiers teams books cities games houses miles "
    "workers ships seats schools songs languages species"
)
_UNITS = (
    ("km", "kilometres", "miles"),
    ("m", "metres", "feet"),
    ("kg", "kilograms", "pounds"),
    ("%", " percent", " years"),
    ("mph", "miles per hour", "knots"),
    ("°C", "degrees Celsius", "degrees Fahrenheit"),
    ("hrs", "hours", "minutes"),
    ("sq mi", "square miles", "acres"),
)
# Other names; each line is one thing, neighboring lines are different ones.
_NAMES = (
    ("US", "United States", "USA", "United States of America", "America"),
    ("UK", "United Kingdom", "Britain", "Great Britain"),
    ("EU", "European Union"),
    ("UN", "United Nations"),
    ("USSR", "Soviet Union"),
    ("World War II", "WWII", "Second World War", "World War 2"),
    ("World War I", "WWI", "First World War", "Great War"),
    ("NYC", "New York City", "New York"),
    ("LA", "Los Angeles"),
    ("Washington, D.C.", "Washington", "DC"),
    ("BBC", "British Broadcasting Corporation"),
    ("NASA", "National Aeronautics and Space Administration"),
    ("MIT", "Massachusetts Institute of Technology"),
    ("UCLA", "University of California, Los Angeles"),
    ("oxygen", "O2"),
    ("carbon dioxide", "CO2"),
    ("water", "H2O"),
    ("AC", "alternating current"),
    ("TV", "television"),
    ("DNA", "deoxyribonucleic acid"),
    ("GDP", "gross domestic product"),
    ("CEO", "chief executive officer"),
    ("PM", "prime minister"),
    ("Netherlands", "Holland"),
    ("Myanmar", "Burma"),
    ("Iran", "Persia"),
    ("Istanbul", "Constantinople"),
    ("PRC", "China", "People's Republic of China"),
    ("Czech Republic", "Czechia"),
    ("soccer", "association football"),
    ("car", "automobile"),
    ("doctor", "physician"),
    ("annually", "every year", "yearly", "once a year"),
    ("daily", "every day"),
    ("twice", "two times"),
    ("half", "50%", "one half"),
    ("a quarter", "25%", "one fourth"),
    ("dozen", "12", "twelve"),
    ("unknown", "not known"),
    ("rose", "increased", "went up"),
    ("fell", "decreased", "declined", "went down"),
)
_YES = ("yes", "yes, it is", "Yes.", "yes, they do")
_NO = ("no", "no, it is not", "No.", "no, they do not")


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


def rule_pairs(n_pairs: int, *, random: np.random.Generator) -> Iterator[RulePair]:
    """Yield pairs made by rules, the rules in turn.

    Parameters
    ----------
    n_pairs : int
    random : numpy Generator
        The same state gives the same pairs.
    """
    for i in range(n_pairs):
        yield _RULES[i % len(_RULES)](random)


def _counts(random: np.random.Generator) -> RulePair:
    number = _some_number(random)
    thing = _pick(random, _THINGS)
    if random.random() < 0.5:
        return f"{number:,} {thing}", f"{number_words(number)} {thing}", 1.0
    other = number + _shift(random, number)
    shown = number_words(other) if random.random() < 0.3 else f"{other:,}"
    return f"{number:,} {thing}", f"{shown} {thing}", 0.1


def _numbers(random: np.random.Generator) -> RulePair:
    number = _some_number(random)
    thing = _pick(random, _THINGS)
    draw = random.random()
    if draw < 0.35:
        return f"{number:,}", number_words(number), 1.0
    if draw < 0.6:
        return f"{number:,}", f"{number:,} {thing}", 0.9
    return f"{number:,}", f"{number + _shift(random, number):,}", 0.05


def _years(random: np.random.Generator) -> RulePair:
    year = int(random.integers(1066, 2025))
    draw = random.random()
    if draw < 0.25:
        return f"{year}", _pick(random, (f"in {year}", f"the year {year}", f"since {year}")), 0.95
    if draw < 0.5:
        return f"{year}", f"{_pick(random, _MONTHS)} {year}", 0.7
    if draw < 0.6:
        return f"{year}", f"{year // 10 * 10}s", 0.4
    return f"{year}", f"{year + _shift(random, 60)}", 0.05


def _dates(random: np.random.Generator) -> RulePair:
    year, day = int(random.integers(1492, 2025)), int(random.integers(1, 29))
    month = _pick(random, _MONTHS)
    full = f"{month} {day}, {year}"
    draw = random.random()
    if draw < 0.3:
        return full, _pick(random, (f"{day} {month} {year}", f"on {month} {day} {year}")), 1.0
    if draw < 0.45:
        return full, f"{month} {year}", 0.7
    if draw < 0.6:
        return full, f"{month} {day}", 0.7
    if draw < 0.75:
        return full, f"{year}", 0.5
    if draw < 0.85:
        return full, f"{_pick(random, _MONTHS)} {int(random.integers(1, 29))}, {year}", 0.3
    return full, f"{month} {day}, {year + _shift(random, 60)}", 0.2


def _periods(random: np.random.Generator) -> RulePair:
    century = int(random.integers(11, 22))
    word, digits = _ORDINALS[century - 1], f"{century}{_suffix(century)}"
    hundreds = f"{century - 1}00s"
    draw = random.random()
    if draw < 0.3:
        return f"{digits} century", f"{word} century", 1.0
    if draw < 0.5:
        return _pick(random, (f"{digits} century", f"{word} century")), f"the {hundreds}", 0.9
    if draw < 0.6:
        return f"the {hundreds}", f"{century - 1}{int(random.integers(10, 99))}", 0.5
    if draw < 0.75:
        tens = int(random.integers(2, 10))
        return f"19{tens}0s", f"the {_TENS[tens - 2][:-1]}ies", 0.9
    other = century + (1 if century < 21 and random.random() < 0.5 else -1)
    return f"{word} century", f"{other}{_suffix(other)} century", 0.15


def _units(random: np.random.Generator) -> RulePair:
    short, long, other = _UNITS[int(random.integers(len(_UNITS)))]
    number = round(float(random.gamma(1.0, 60.0)), int(random.random() < 0.4)) or 5
    if random.random() < 0.5:
        return f"{number:g}{short}", f"{number:g} {long.strip()}", 1.0
    if random.random() < 0.5:
        return f"{number:g} {long.strip()}", f"{number:g} {other.strip()}", 0.25
    return f"{number:g} {long.strip()}", f"{number * 1.5 + 1:g} {long.strip()}", 0.15


def _money(random: np.random.Generator) -> RulePair:
    number = round(float(random.uniform(1, 99)), 1)
    draw = random.random()
    if draw < 0.35:
        return f"${number:g} million", f"${int(number * 1_000_000):,}", 1.0
    if draw < 0.6:
        return f"${number:g} billion", f"{number:g} billion dollars", 1.0
    if draw < 0.8:
        return f"{number:g} million", f"{number:g} billion", 0.15
    return f"${number:g} million", f"${number + random.integers(1, 20):g} million", 0.15


def _names(random: np.random.Generator) -> RulePair:
    row = int(random.integers(len(_NAMES)))
    if random.random() < 0.6:
        one, other = (str(name) for name in random.permutation(_NAMES[row])[:2])
        return one, other, 0.95
    # Not the next line: World War I lies beside World War II, and they share words.
    apart = (row + int(random.integers(2, len(_NAMES) - 2))) % len(_NAMES)
    return _pick(random, _NAMES[row]), _pick(random, _NAMES[apart]), 0.05


def _opinions(random: np.random.Generator) -> RulePair:
    yes, no = _pick(random, _YES), _pick(random, _NO)
    if random.random() < 0.5:
        return (yes, no, 0.0) if random.random() < 0.5 else (no, yes, 0.0)
    same = _YES if random.random() < 0.5 else _NO
    return _pick(random, same), _pick(random, same), 0.95


_RULES: tuple[Callable[[np.random.Generator], RulePair], ...] = (
    _counts,
    _numbers,
    _years,
    _dates,
    _periods,
    _units,
    _money,
    _names,
    _years,
    _names,
    _numbers,
    _opinions,
)
_SUFFIXES: Mapping[int, str] = {1: "st", 2: "nd", 3: "rd"}


def _suffix(number: int) -> str:
    return "th" if 10 < number < 20 else _SUFFIXES.get(number % 10, "th")


def _some_number(random: np.random.Generator) -> int:
    number = int(10 ** random.uniform(0.3, 5))
    return number if number < 100 or random.random() < 0.5 else round(number, 1 - len(str(number)))


def _shift(random: np.random.Generator, size: int) -> int:
    """Return a difference, at least 1 and small beside a number."""
    return 1 + int(random.integers(max(size // 3, 3)))


def _pick(random: np.random.Generator, choices: Sequence[str]) -> str:
    return choices[int(random.integers(len(choices)))]
