"""Explain: tokens as pieces of their text, and the parts that show what each of them counts.

Pieces and numbers in, parts out: what JSON, page and terminal have of matches, gains and weights.
Runs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from qaeval_core.explain.parts import Part, number
from qaeval_core.pages.html import NO_PIECE, Markup, Passage, Strip, Table

FloatArray = NDArray[np.float64]

_N_SHOWN = 4
MAX_HEAT = 40  # rows and columns of a heat map
_MAX_HEAT_COLOR = 0.6  # Stronger color would make numbers hard to read in one of the schemes.
_HEAT = "more color is more, framed is the most of a row"


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


def layer_matches(
    *,
    window: tuple[int, int],
    candidate: Sequence[str],
    context: Sequence[str],
    matches: FloatArray,
    what: str,
    layer_precision: Sequence[float],
    used_layers: Sequence[int],
) -> Part:
    """Return LRM of one window: which context token each candidate token is matched to, per layer.

    Parameters
    ----------
    window : (int, int)
        Which window of the target this is, from 1, and how many there are.
    candidate, context : sequence of str
        Tokens that count, as pieces of their texts.
    matches : float ndarray of shape (n_layers, n_cand, 2)
        Index into ``context``, and what the match is worth; in [-1, 1].
    what : str
        What a match is worth, such as "cosine".
    layer_precision : sequence of float, n_layers
        As stored: the mean worth of all candidate tokens.
    used_layers : sequence of int
        Layers that the instances average over, from 0.
    """
    matched, worth = matches[..., 0].astype(np.int64), matches[..., 1]  # both (n_layers, n_cand)
    used = list(used_layers)
    mean_worth = worth[used].mean(axis=0)
    shares = np.full((len(candidate), len(context)), np.nan)
    for own, values in zip(matched[used], worth[used], strict=True):
        places = np.arange(len(candidate)), own
        shares[places] = np.nan_to_num(shares[places]) + values / len(used)
    popularity = np.bincount(matched[used].ravel(), minlength=len(context))
    rows = _matched_rows(candidate, context, matched, worth)
    rows.append(["mean", *(f"{value:.4f}" for value in layer_precision)])
    head = [f"layer {i + 1}{'' if i in used else ' (unused)'}" for i in range(len(matched))]
    label = "Context tokens by how many matches they get, all used layers"
    caption = f"The context token that each candidate token is matched to, and its {what}"
    shown = f"Of each candidate token's {what}, what each context token it is matched to gives"
    return Part(
        kind="layer_matches",
        data={
            "window": window[0],
            "n_windows": window[1],
            "candidate": candidate,
            "context": context,
            "is_cosine": what == "cosine",
            "matched": matched.tolist(),
            "worth": worth.tolist(),
            "layer_precision": layer_precision,
            "used_layers": used,
        },
        line=(
            f"by layer {' '.join(f'{layer_precision[i]:.2f}' for i in used)}; best matched "
            f"{_extreme(candidate, mean_worth, best=True)}; worst "
            f"{_extreme(candidate, mean_worth, best=False)}"
        ),
        blocks=(
            Strip(label + _which(window), context, popularity.tolist(), unit="matches"),
            heat_map(shown + _which(window), "candidate token", candidate, context, shares),
        ),
        folded_title="Layer by layer",
        folded=(Table(caption + _which(window), ["candidate token", *head], rows),),
    )


def heat_map(
    caption: str,
    corner: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: FloatArray,
) -> Table:
    """Return a table of tokens against tokens, whose cells are colored by their value.

    Of more columns than have room those are shown that are the most of a row, then those of the
    largest values. Rows are the first ones. Columns without a value are left out.

    Parameters
    ----------
    values : float ndarray of shape (n_rows, n_columns)
        NaN where there is none.

    Examples
    --------
    >>> heat_map("Cosines", "token", ["a"], ["b", "c"], np.array([[0.5, 1.0]])).rows[0][1]
    '<span class="heat last" style="--a:0.00">.50</span>'
    """
    own = values[:MAX_HEAT]
    ranks = np.nan_to_num(own, nan=-np.inf)
    largest = ranks.max(axis=0, initial=-np.inf)
    most = ranks.argmax(axis=1).tolist() if own.size else []
    # Where most cells are empty, the only one of a column says nothing.
    last = ranks.argmax(axis=0).tolist() if own.size and not np.isnan(own).any() else []
    best = set(most)
    order = sorted(range(len(columns)), key=lambda i: (i not in best, -largest[i]))
    kept = sorted(i for i in order[:MAX_HEAT] if np.isfinite(largest[i]))
    known = own[:, kept][np.isfinite(own[:, kept])]
    low, high = float(known.min(initial=np.inf)), float(known.max(initial=-np.inf))
    cells = [
        [
            _heat_cell(
                (value - low) / ((high - low) or 1.0),
                value,
                kind="heat" + " best" * (most[i] == j) + " last" * (bool(last) and last[j] == i),
            )
            for j in kept
            for value in [float(own[i, j])]
        ]
        for i in range(len(own))
    ]
    names = [piece.strip() or NO_PIECE for piece in rows]
    sizes = ((len(own), len(rows), "rows"), (len(kept), len(columns), "columns"))
    cut = [f"{n} of {n_all:,} {what}" for n, n_all, what in sizes if n < n_all]
    return Table(
        "; ".join([f"{caption}: {_HEAT}{', underlined of a column' if last else ''}", *cut]),
        [corner, *(columns[j].strip() or NO_PIECE for j in kept)],
        [[name, *line] for name, line in zip(names, cells, strict=False)],
    )


def _heat_cell(color: float, value: float, *, kind: str) -> Markup:
    if not np.isfinite(value):
        return Markup("")
    near = round(value, 2) + 0.0  # No -0.
    shown = f"{near:.2f}".replace("0.", ".", 1) if abs(near) < 1 else f"{near:.1f}"
    return Markup(f'<span class="{kind}" style="--a:{_MAX_HEAT_COLOR * color:.2f}">{shown}</span>')


def _matched_rows(
    candidate: Sequence[str], context: Sequence[str], matched: NDArray[np.int64], worth: FloatArray
) -> list[list[str]]:
    """Return a row per candidate token, with its match and what that is worth in each layer."""
    names = [piece.strip() or NO_PIECE for piece in context]
    return [
        [
            piece or NO_PIECE,
            *(f"{names[i]} {own:.2f}" for i, own in zip(matched[:, m], worth[:, m], strict=True)),
        ]
        for m, piece in enumerate(candidate)
    ]


def likelihood_gains(
    *,
    window: tuple[int, int],
    pieces: Sequence[str],
    base: FloatArray,
    prompted: FloatArray,
    sums: tuple[float, float],
) -> Part:
    """Return GRG of one window: what the candidate as a prompt adds to each token's likelihood.

    Parameters
    ----------
    window : (int, int)
        Which window of the target this is, from 1, and how many there are.
    pieces : sequence of str
        The window's tokens, as pieces of the context.
    base, prompted : float ndarray of shape (n_tokens,)
        log p of each token without and with the candidate before it; nats.
    sums : (float, float)
        Of both, as stored.
    """
    gain, total = prompted - base, sums[1] - sums[0]
    columns = zip(pieces, base, prompted, gain, strict=True)
    rows = [[piece or NO_PIECE, f"{b:.3f}", f"{p:.3f}", f"{g:+.3f}"] for piece, b, p, g in columns]
    rows.append(["sum", number(sums[0]), number(sums[1]), f"{total:+.3f}"])
    ratio = f" = {total / abs(sums[0]):+.4f} of it" if sums[0] else ""
    label = (
        "Context tokens by what the candidate before them adds to their log-likelihood "
        f"(underlined: it takes away){_which(window)}. Sum {total:+.3f} nats on "
        f"{sums[0]:.3f}{ratio}."
    )
    caption = f"log p of each context token, in nats{_which(window)}"
    head = ("token", "without the candidate", "after the candidate", "gain")
    return Part(
        kind="likelihood_gains",
        data={
            "window": window[0],
            "n_windows": window[1],
            "pieces": pieces,
            "base_nats": base.tolist(),
            "prompted_nats": prompted.tolist(),
            "gain_nats": gain.tolist(),
            "base_sum_nats": sums[0],
            "prompted_sum_nats": sums[1],
        },
        line=(
            f"{total:+.2f} nats on {sums[0]:.1f} over {len(pieces)} tokens; most gained "
            f"{_extreme(pieces, gain, best=True)}; most lost {_extreme(pieces, gain, best=False)}"
        ),
        blocks=(Strip(label, pieces, gain.tolist(), unit="nats"),),
        folded_title="All tokens",
        folded=(Table(caption, head, rows, numbers=(1, 2, 3)),),
    )


def token_probabilities(
    text: str, pieces: Sequence[str], probability: FloatArray, *, mean: float
) -> Part:
    """Return GRG of profile authors: probability of every token of one whole text.

    Parameters
    ----------
    text : str
        "context", or "question and context".
    pieces : sequence of str
        Its tokens; the last one is the end of text.
    probability : float ndarray of shape (n_tokens,)
    mean : float
        As stored.
    """
    values = probability.tolist()
    return Part(
        kind="token_probabilities",
        data={"text": text, "pieces": pieces, "probability": values, "mean": mean},
        line=f"mean probability of {len(pieces)} tokens of {text} {mean:.4f}",
        blocks=(Strip(f"Tokens of {text} by probability; mean {number(mean)}", pieces, values),),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedText:
    """One text of a pair, and the best partner of each of its tokens in the other.

    Attributes
    ----------
    pieces : sequence of str
        Tokens, as pieces of the text; special tokens are left out.
    matched : sequence of int or None
        Index of the partner in the other text; None is a special token such as [SEP].
    cosine : float ndarray of shape (n_tokens,)
        With the partner; in [-1, 1].
    weight : float ndarray of shape (n_tokens,)
        What each token counts: 1, or its idf.
    mean : float or None
        Of the cosines by weight, before rescaling; None where no token has weight.
    """

    pieces: Sequence[str]
    matched: Sequence[int | None]
    cosine: FloatArray
    weight: FloatArray
    mean: float | None


def token_matches(
    *, candidate: MatchedText, reference: MatchedText, cosine: FloatArray, target: str
) -> Part:
    """Return BERTScore of one pair: the best partner of each token of both texts.

    Parameters
    ----------
    cosine : float ndarray of shape (n_candidate, n_reference)
        Of all pairs of tokens that are not special.
    target : str
        What the reference is: "reference" or "context".
    """
    sides = {"candidate": candidate, "reference": reference}
    means = {"precision": candidate.mean, "recall": reference.mean}
    shown = ", ".join(f"{name} {mean:.4f}" for name, mean in means.items() if mean is not None)
    return Part(
        kind="token_matches",
        data={
            **{name: side.pieces for name, side in sides.items()},
            **{f"{name}_matched": side.matched for name, side in sides.items()},
            **{f"{name}_cosine": side.cosine.tolist() for name, side in sides.items()},
            **{f"{name}_weight": side.weight.tolist() for name, side in sides.items()},
            **means,
        },
        line=(
            f"{shown}; worst matched of the candidate "
            f"{_extreme(candidate.pieces, candidate.cosine, best=False)}; of the reference "
            f"{_extreme(reference.pieces, reference.cosine, best=False)}"
        ),
        blocks=(cosine_map(candidate.pieces, reference.pieces, cosine, target),),
        folded_title="The best partner of each token",
        folded=(
            _partners_table(candidate, reference, ("candidate", target, "precision")),
            _partners_table(reference, candidate, (target, "candidate", "recall")),
        ),
    )


def cosine_map(
    candidate: Sequence[str], reference: Sequence[str], cosine: FloatArray, target: str
) -> Table:
    """Return how alike the tokens of a candidate and of a reference, or context, are."""
    caption = f"Cosine of each candidate token with each {target} token"
    return heat_map(caption, "candidate token", candidate, reference, cosine)


def token_costs(
    *, candidate: Sequence[str], reference: Sequence[str], cosine: FloatArray, cost: float
) -> Part:
    """Return MoverScore of one pair: what to move its tokens costs, and how alike they are."""
    said = f"the candidate's tokens are moved onto the reference's at a mean distance of {cost:.4f}"
    return Part(
        kind="token_costs",
        data={"candidate": candidate, "reference": reference, "transport_cost": cost},
        line=said,
        blocks=(
            Passage(f"{said[0].upper()}{said[1:]}.", tone="plain"),
            cosine_map(candidate, reference, cosine, "reference"),
        ),
    )


def _partners_table(side: MatchedText, other: MatchedText, names: tuple[str, str, str]) -> Table:
    own_name, other_name, mean_name = names
    partners = [piece.strip() or NO_PIECE for piece in other.pieces]
    rows = [
        [
            piece or NO_PIECE,
            "(special token)" if i is None else partners[i],
            f"{cosine:.4f}",
            number(weight),
        ]
        for piece, i, cosine, weight in zip(
            side.pieces, side.matched, side.cosine, side.weight, strict=True
        )
    ]
    mean = "undefined" if side.mean is None else f"{side.mean:.4f}"
    return Table(
        f"Best partner of each {own_name} token; mean by weight ({mean_name}) {mean}",
        [f"{own_name} token", f"{other_name} token", "cosine", "weight"],
        rows,
        numbers=(2, 3),
    )


def token_weights(text: str, pieces: Sequence[str], weight: Sequence[float]) -> Part:
    """Return KPQA of one text: how likely each token is in the answer to the question, in [0, 1].

    ``text`` is "candidate" or "reference".
    """
    rows = [(piece or NO_PIECE, f"{own:.4f}") for piece, own in zip(pieces, weight, strict=True)]
    label = f"Tokens of the {text} by how likely they are in the answer to the question"
    return Part(
        kind="token_weights",
        data={"text": text, "pieces": pieces, "weight": weight},
        line=f"heaviest tokens of the {text} {_extreme(pieces, weight, best=True)}",
        blocks=(Strip(label, pieces, weight),),
        folded_title="All tokens",
        folded=(Table(f"Weights of the {text}", ("token", "weight"), rows, numbers=(1,)),),
    )


def _which(window: tuple[int, int]) -> str:
    return "" if window[1] == 1 else f", window {window[0]} of {window[1]}"


def _extreme(pieces: Sequence[str], values: Sequence[float] | FloatArray, *, best: bool) -> str:
    """Return the tokens with the largest or smallest values, with them."""
    order = sorted(range(len(values)), key=lambda i: values[i], reverse=best)
    return ", ".join(f"{pieces[i].strip()!r} {values[i]:+.2f}" for i in order[:_N_SHOWN])
