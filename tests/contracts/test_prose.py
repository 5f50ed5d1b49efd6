"""Prose is plain: no sentence of the list below, and help pages that all say the same alike."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from helpers import REPOSITORY
from qaeval.cli import app
from qaeval_export.__main__ import make_parser
from qaeval_export.training.options import app as training
from qaeval_export.training.options import parse_options
from tools.prose import help_texts, n_words, sentences

HELP = help_texts()
PAGES = (
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
)

MAX_WORDS = 25
MAX_COLUMNS = 78  # Of 80, less a margin on either side.
COMPLETION = {"--install-completion", "--show-completion"}
ROOT_OPTIONS = {"--version", "--debug", "--help", *COMPLETION}
# Said to users once, and hard to read for whoever does not know the project.
PHRASES = (
    "what was killed goes on where it was",
    "what is scored is not paid for twice",
    "leaves scored, undefined with a reason",
    "metrics of words",
    "metrics of answers by models",
    "by what it is worth",
    "which of them to believe",
    "a million rows of words take",
    "public sets that people judged show",
    "that a teacher takes",
    "hardly told by any",
    "telling questions about another passage",
    "rows worth training on, and why not the others",
    "keeps what looks good enough",
    "certifies .80",
    "such as ..., is asked",
    "the server at `base_url` is asked",
    "unused ones, which are asked again",
    "an outage is no verdict",
    "a note tells",
    "ties go by",
    "nobody can tell how",
    "who accepts a change pins",
    "who alarms where nothing moved",
    "at best, all labels good",
    "is not used any more",
    "scores of a corpus are measured against",
    "so long a server may answer nobody",
    "of the rows that come so far",
    "of its labels are good, the lower bound",
    "not when chance did",
    "the reference of those to come",
    "is not heeded",
    "held for dead",
    "no server is asked that a file names",
    "calibrated one after the other",
    "is told by the order in which rows are drawn",
    "joins later and is blind",
    "are a bound of what begins",
    "is answered by the command",
    "colour",
    "tokeniser",
)  # fmt: skip


def plain(text: str) -> str:
    """Return a text in which wrapped lines, marks and case hide nothing."""
    return re.sub(r"\s+", " ", text.replace("*", "")).lower()


def found(text: str) -> list[str]:
    """Return the phrases that a text has."""
    return [phrase for phrase in PHRASES if phrase in plain(text)]


def sources() -> list[Path]:
    """Return the files whose texts users meet in messages, pages and descriptions."""
    roots = ("jobs", "export", "qaeval_core")
    return [path for root in roots for path in sorted((REPOSITORY / root).rglob("*.py"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_in_plain_words(page: Path) -> None:
    """Protects from sentences that newcomers did not understand."""
    assert found(page.read_text(encoding="utf-8")) == []


def test_messages_and_docstrings_are_in_plain_words() -> None:
    """A phrase that is broken over two literals is found, too."""
    joined = re.compile(r"\"\s*\n\s*f?\"")
    texts = {path: joined.sub("", path.read_text(encoding="utf-8")) for path in sources()}
    assert len(texts) > 200
    own = {str(path.relative_to(REPOSITORY)): found(text) for path, text in texts.items()}
    assert {path: phrases for path, phrases in own.items() if phrases} == {}


@pytest.mark.parametrize("verb", HELP)
def test_help_is_in_plain_words(verb: str) -> None:
    """One thought a sentence, which begins and ends as sentences do."""
    texts = HELP[verb]
    assert found(" ".join(texts)) == []
    every = [sentence for text in texts for sentence in sentences(text)]
    assert [own for own in every if n_words(own) > MAX_WORDS] == []
    assert [own for own in texts if not re.match(r"[A-Z0-9]", own)] == []
    assert [own for own in texts if own[-1] not in ".:" and "  " not in own] == []


def commands() -> dict[str, Any]:
    """Return the commands by name, but for those whose options are another program's."""
    verbs = dict(typer.main.get_command(app).commands)
    jobs = typer.main.get_command(training).commands
    return {**verbs, **{f"train {name}": job for name, job in jobs.items()}}


def options(command: Any) -> list[Any]:
    """Return the options of a command."""
    return [own for own in command.params if own.param_type_name == "option"]


@pytest.mark.parametrize("verb", commands())
def test_options_have_a_group_and_a_name_for_their_value(verb: str) -> None:
    """A list of thirty options is not read, and ``<bool>`` says nothing of a flag."""
    for option in options(commands()[verb]):
        assert option.help, option.opts
        assert option.rich_help_panel, option.opts
        assert option.metavar is not None, option.opts


# Of one name and another meaning.
OF_THEIR_OWN = {
    "--out": "scores, studies, baselines, trained models",
    "--to": "kept rows, or a report",
    "--json": "a file, or what is printed",
    "--metrics": "metrics, or columns of any table",
    "--by": "a carried column, or one of a table",
    "--labels": "of good rows, or ratings",
    "--cluster": "a column, or also a role",
    "--local": "one process, or several",
    "--on": "a key to join by, or what rows share",
    "--system": "systems of a study, or of one OUT",
    "--column": "roles of training files are others",
}


def test_an_option_says_the_same_in_all_verbs() -> None:
    """What is described twice is described in two ways before long."""
    texts: dict[str, dict[str, str]] = {}
    for verb, command in commands().items():
        for option in options(command):
            told = f"{option.rich_help_panel} {option.metavar}: {option.help}"
            texts.setdefault(option.opts[0], {})[verb] = told
    shared = {name: set(own.values()) for name, own in texts.items() if len(own) > 1}
    assert len(shared) > 8
    differ = {name: own for name, own in shared.items() if len(own) > 1}
    assert differ.keys() == OF_THEIR_OWN.keys()
    assert {"--input", "--dry-run", "--no-texts", "--texts", "--config"} <= shared.keys()


def examples(epilog: str) -> Iterator[list[str]]:
    """Yield the words of each command in an epilog."""
    for line in re.sub(r"\\\n\s*", "", epilog).splitlines():
        if line.startswith("  qaeval "):
            yield shlex.split(line)[1:]


def epilogs() -> dict[str, str]:
    """Return the epilog of every help page."""
    return {
        "qaeval": typer.main.get_command(app).epilog,
        **{verb: command.epilog for verb, command in commands().items() if " " not in verb},
        "train": typer.main.get_command(training).epilog,
        "export": make_parser().epilog or "",
    }


@pytest.mark.parametrize("verb", epilogs())
def test_examples_of_help_parse(verb: str) -> None:
    """An example that does not run is worse than none."""
    epilog = epilogs()[verb]
    shown = list(examples(epilog))
    assert sum(words[0] == verb or verb == "qaeval" for words in shown) >= 2
    assert "Exit codes: 0" in epilog or verb == "qaeval"
    for name, *words in shown:
        if name == "export":
            assert make_parser().parse_args(words).graph
        elif name == "train":
            assert parse_options(words).out
        else:
            assert commands()[name].make_context(name, words)


@pytest.mark.parametrize("verb", epilogs())
def test_epilogs_fit_a_terminal_of_80_columns(verb: str) -> None:
    """A line that is wrapped in the middle looks like two."""
    wide = [line for line in epilogs()[verb].splitlines() if len(line) > MAX_COLUMNS]
    assert wide == []


def test_verbs_come_in_the_order_in_which_they_are_met() -> None:
    """Each with one line that fits a terminal beside its name."""
    group = typer.main.get_command(app)
    assert list(group.commands)[:3] == ["demo", "metrics", "score"]
    lines = [command.help.partition("\n")[0] for command in group.commands.values()]
    assert [line for line in lines if len(line) > 65 or not line.endswith(".")] == []
