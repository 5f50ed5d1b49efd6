"""Texts: the fixed pairs that every exported graph is compared with torch on.

Own sentences. Pairs vary in length from one word to about 200 tokens, in script and in topic,
because an error of a graph shows at some lengths and tokens only.
"""

from __future__ import annotations

__all__ = ["parity_pairs"]

_CANDIDATES = (
    "Why?",
    "water",
    "Who built the lighthouse?",
    "When did the mill close its doors for the last time?",
    "How many boats were in the harbour on the morning of the storm?",
    "Wie heißt der Fluss, der durch die Stadt fließt?",
    "Où se trouve la bibliothèque de l'école ?",
    "What is the price of 3.5 kg of apples at €2.40 per kilogram?",
    "灯台はどこにありますか",
    "Which of the two sisters, the one who painted or the one who kept bees, moved to the island "
    "first, and what did she take with her?",
)

_SENTENCES = (
    "The lighthouse on the northern cliff was built in 1874 by two brothers from the village.",
    "Its lamp burned whale oil at first, later paraffin, and was made electric only in 1951.",
    "On the morning of the storm there were fourteen boats in the harbour and none at sea.",
    "The mill closed in the autumn of 1923; its owner, an old man by then, kept the key.",
    "Bees need water in summer, and they fly up to three kilometres to find it.",
    "Anna painted the sea every day, yet she never learned to swim.",
    "Der Fluss fließt durch die Altstadt, an der Mühle vorbei und weiter bis zum Meer.",
    "La bibliothèque de l'école est ouverte le mardi et le jeudi après-midi.",
    "灯台は北の崖の上にあります。",
    "A kilogram of apples costs €2.40, pears cost €3.10, and plums are sold by the basket.",
    "The train leaves at 07:45, stops at every station, and arrives shortly after noon.",
    "Nobody knew why the clock in the tower had stopped at a quarter past four.",
)

# How many sentences the contexts have, from short to long.
_CONTEXT_SENTENCES = (1, 2, 4, 8)


def parity_pairs() -> list[tuple[str, str]]:
    """Return the fixed (candidate, context) pairs.

    Examples
    --------
    >>> pairs = parity_pairs()
    >>> len(pairs), pairs[0]
    (40, ('Why?', 'Nobody knew why the clock in the tower had stopped at a quarter past four.'))
    """
    pairs = []
    for i, candidate in enumerate(_CANDIDATES):
        for j, n_sentences in enumerate(_CONTEXT_SENTENCES):
            start = 11 + 5 * i + 7 * j
            chosen = [_SENTENCES[(start + k) % len(_SENTENCES)] for k in range(n_sentences)]
            pairs.append((candidate, " ".join(chosen)))
    return pairs
