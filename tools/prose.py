"""prose: count sentences and words of README.md, docs/*.md and all ``--help`` pages.

It gates nothing. The aim is plain prose: one thought a sentence, at most 25 words. Usage, from the
root of the repository::

    PYTHONPATH=.:jobs:export python -m tools.prose            a line for each part
    PYTHONPATH=.:jobs:export python -m tools.prose --pages    also a line for each page
    PYTHONPATH=.:jobs:export python -m tools.prose --long 35  also the sentences over 35 words

Left out are code blocks, headings, comments, the rules of tables, cells of fewer than five words,
the addresses of links, and the commands of examples. A span of code counts as one word.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import typer

ROOT = Path(__file__).resolve().parents[1]
BOUNDS = (25, 35)
_MIN_CELL_WORDS = 5

_FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_IMAGE_OR_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`\n]+`")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_RULE = re.compile(r"^\s*\|?[\s|:-]+\|?\s*$")
# Not behind e.g., i.e., vs. and al., nor inside of a number or a name of a file.
_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)(?<!\bal)[.!?][)\"'*_]*(?=\s+[^a-z\s]|\s*$)")
_WORD = re.compile(r"[^\W_][\w'.,:/%=<>@*+-]*", re.UNICODE)


def prose_of(markdown: str) -> Iterator[str]:
    """Yield the paragraphs, list items and cells of a page that are prose."""
    text = _COMMENT.sub("", _FENCE.sub("\n", markdown))
    text = _CODE.sub("CODE", _IMAGE_OR_LINK.sub(r"\1", text))
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        is_row = line.lstrip().startswith("|")
        if not line.strip() or is_row or line.startswith("#") or _ITEM.match(line):
            if lines:
                yield " ".join(lines)
            lines = []
        if is_row:
            yield from () if _RULE.match(line) else _cells(line)
        elif line.strip() and not line.startswith("#"):
            lines.append(_ITEM.sub("", line).strip())


def _cells(line: str) -> Iterator[str]:
    cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    yield from (cell for cell in cells if len(_WORD.findall(cell)) >= _MIN_CELL_WORDS)


def sentences(text: str) -> list[str]:
    """Return the sentences of a paragraph.

    Examples
    --------
    >>> sentences("Give one file, e.g. q.parquet. It is read once!")
    ['Give one file, e.g. q.parquet.', 'It is read once!']
    """
    found, start = [], 0
    for end in _END.finditer(text):
        found.append(text[start : end.end()].strip())
        start = end.end()
    return [sentence for sentence in [*found, text[start:].strip()] if _WORD.search(sentence)]


def n_words(sentence: str) -> int:
    """Return how many words a sentence has; a span of code is one.

    Examples
    --------
    >>> n_words("Set `a.b=1` to 0.5, or leave it out.")
    8
    """
    return len(_WORD.findall(_CODE.sub("CODE", sentence)))


def help_texts() -> dict[str, list[str]]:
    """Return the texts of each ``--help`` page by verb: its own, its options' and its epilog's."""
    from qaeval.cli import app
    from qaeval_export.__main__ import make_parser
    from qaeval_export.training.options import app as training

    pages = dict(_pages("qaeval", typer.main.get_command(app)))
    pages.update(_pages("qaeval train", typer.main.get_command(training)))
    parser = make_parser()
    pages["qaeval export"] = [
        *pages["qaeval export"],
        *_paragraphs(parser.description),
        *(action.help for action in parser._actions if action.help and action.dest != "help"),
        *_paragraphs(parser.epilog),
    ]
    return pages


def _pages(name: str, command: object) -> Iterator[tuple[str, list[str]]]:
    options = [getattr(option, "help", None) for option in getattr(command, "params", ())]
    yield (
        name,
        [
            *_paragraphs(getattr(command, "help", None)),
            *(text for text in options if text),
            *_paragraphs(getattr(command, "epilog", None)),
        ],
    )
    for verb, child in getattr(command, "commands", {}).items():
        yield from _pages(f"{name} {verb}", child)


def _paragraphs(text: str | None) -> Iterator[str]:
    """Yield the paragraphs of a help text, less the commands of its examples."""
    for paragraph in re.split(r"\n\s*\n", (text or "").replace("\b", "")):
        lines, is_command = [], False
        for line in paragraph.splitlines():
            is_command = is_command or re.match(r"\s*(qaeval|python) ", line) is not None
            # Two spaces inside: a row of a table.
            if not is_command and "  " not in line.strip():
                lines.append(line.strip())
            is_command = is_command and line.rstrip().endswith("\\")
        joined = " ".join(lines).strip()
        if joined and joined.lower() not in ("examples:", "example:"):
            yield joined


def counts(texts: Iterable[str]) -> list[int]:
    """Return the number of words of each sentence."""
    return [n_words(sentence) for text in texts for sentence in sentences(text)]


def line_of(name: str, lengths: Sequence[int]) -> str:
    """Return what is known of a part, as one line of the table."""
    n = max(len(lengths), 1)
    shares = "".join(f"{sum(length > b for length in lengths) / n:>9.1%}" for b in BOUNDS)
    return f"{name:<28}{len(lengths):>10}{sum(lengths) / n:>16.1f}{shares}"


def parts() -> dict[str, dict[str, list[str]]]:
    """Return the texts of each page of each part."""
    pages = {
        "README.md": [ROOT / "README.md"],
        "docs/*.md": sorted((ROOT / "docs").glob("*.md")),
    }
    found = {
        part: {path.name: list(prose_of(path.read_text(encoding="utf-8"))) for path in paths}
        for part, paths in pages.items()
    }
    return {**found, "--help": help_texts()}


def print_table(found: Mapping[str, Mapping[str, Sequence[str]]], *, has_pages: bool) -> None:
    """Print a line for each part, and for each page where they are asked for."""
    bounds = "".join(f"{f'>{bound}':>9}" for bound in BOUNDS)
    print(f"{'':<28}{'sentences':>10}{'words/sentence':>16}{bounds}")
    for part, pages in found.items():
        print(line_of(part, counts(text for texts in pages.values() for text in texts)))
        if has_pages and len(pages) > 1:
            for name, texts in pages.items():
                print(line_of(f"  {name}", counts(texts)))


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description="Count words a sentence of all prose.")
    parser.add_argument("--pages", action="store_true", help="also count each page")
    parser.add_argument("--long", type=int, metavar="N", help="show sentences over N words")
    args = parser.parse_args()
    found = parts()
    print_table(found, has_pages=args.pages)
    for part, pages in found.items() if args.long else ():
        for name, texts in pages.items():
            for text in texts:
                for sentence in sentences(text):
                    if n_words(sentence) > args.long:
                        print(f"\n{part} {name} ({n_words(sentence)}): {sentence}")


if __name__ == "__main__":
    main()
