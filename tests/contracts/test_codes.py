"""Each error has a code that ``codes.toml`` explains, and docs/errors.md is made from that list.

``PYTHONPATH=.:tests python tests/contracts/test_codes.py`` writes the page anew.
"""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from qaeval_core import errors
from qaeval_core.codes import code_of_reason, read_codes
from qaeval_core.errors import ConfigError, QAEvalError, RowFailedError, with_code
from qaeval_core.terminal import say_error

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "errors.md"
ROOTS = ("qaeval_core", "jobs", "export")
# The first line ends there; other lines may follow, or what begins them at run time.
ENDS_WITH_CODE = re.compile(r"\[(QA\d{4})\](\n|$|\{\}$|\0$)")
GROUPS = {
    "QA00": "Outside of qaeval",
    "QA01": "Command line",
    "QA02": "Settings and plugins",
    "QA03": "Data",
    "QA04": "Models",
    "QA05": "Runs, clusters and stores",
    "QA06": "Language models",
    "QA07": "Filter",
    "QA08": "Audit",
    "QA09": "Training",
    "QA10": "Reasons of rows",
}
# What constructs an error from a text that has its code already, as source.
PASSED_ON = {
    "error",
    "problem",
    "self.what",
    "str(error)",
    "missing_text(missing)",
    "self._refused[name]",
    "'\\n'.join(lines)",
    "'\\n'.join(problems)",
    "'\\n'.join(dict.fromkeys(problems))",
}
# Lists of words, a style sheet, and texts that models read.
NO_PROSE = {"q_bleu.py", "conditions.py", "html.py", "parity.py", "naco_prompt.py"}
# Parts of a whole message: another error is made of them, with a code.
PARTS = {"PipelineError", "RowFailedError"}


@cache
def _trees() -> dict[Path, ast.Module]:
    files = [path for root in ROOTS for path in (ROOT / root).rglob("*.py")]
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}


@cache
def _error_names() -> frozenset[str]:
    """Return the names of all classes of errors, those that modules keep to themselves too."""
    names = {"QAEvalError"}
    classes = [
        node for tree in _trees().values() for node in ast.walk(tree) if type(node) is ast.ClassDef
    ]
    while new := {
        own.name
        for own in classes
        if own.name not in names and names & {getattr(base, "id", "") for base in own.bases}
    }:
        names |= new
    return frozenset(names)


def _literal(argument: ast.expr, hole: str) -> str:
    """Return a message with ``hole`` in the place of what is known at run time."""
    if isinstance(argument, ast.BinOp):
        return _literal(argument.left, hole) + _literal(argument.right, hole)
    if isinstance(argument, ast.JoinedStr):
        return "".join(_literal(part, hole) for part in argument.values)
    is_text = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    return str(argument.value) if is_text and isinstance(argument, ast.Constant) else hole


def _messages() -> Iterator[tuple[str, ast.expr]]:
    """Yield the place and the message of every error that is made."""
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if name in _error_names() - PARTS and isinstance(node, ast.Call) and node.args:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.args[0]


def _used() -> set[str]:
    files = [path for path in _trees() if path.name != "codes.py"]
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    return set(re.findall(r"\bQA\d{4}\b", source))


def test_every_error_has_a_code() -> None:
    """An error without one cannot be looked up."""
    bare = []
    for place, message in _messages():
        shown = _literal(message, "{}")
        has_own = ENDS_WITH_CODE.search(shown) or ast.unparse(message).startswith("with_code(")
        # ``f"{file}: {error}"`` ends as the error that it wraps.
        wraps = shown.endswith(": {}") or "[{}]" in shown or "reads the input again. {}" in shown
        if not (has_own or wraps or ast.unparse(message) in PASSED_ON):
            bare.append(f"{place}: {shown}")
    assert not bare


def test_sentences_of_texts_are_short() -> None:
    """Who reads an error or a note wants to go on; what is filled in at run time is one word."""
    long = [
        f"{path.relative_to(ROOT)}: {sentence}"
        for path, tree in _trees().items()
        if path.name not in NO_PROSE
        for text in _texts(tree)
        for sentence in re.split(r"(?<=[.;?:])\s+|\n", text)
        if len(sentence.split()) > 25
    ]
    assert not long
    assert sum(len(list(_texts(tree))) for tree in _trees().values()) > 10_000


def _texts(tree: ast.AST) -> Iterator[str]:
    """Yield the whole texts of a module, less docstrings."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.JoinedStr | ast.BinOp | ast.Constant):
            yield _literal(node, "{}")
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not (is_docstring or isinstance(node, ast.JoinedStr | ast.Constant)):
            yield from _texts(node)


def test_a_new_error_without_a_code_is_seen() -> None:
    """The check itself: what a module that forgets its code looks like."""
    message = ast.parse('ConfigError(f"no {name} here")', mode="eval").body
    assert isinstance(message, ast.Call)
    assert ENDS_WITH_CODE.search(_literal(message.args[0], "{}")) is None


def test_codes_in_use_are_those_of_the_list() -> None:
    """A code that nobody raises is history; one that is not in the list says nothing."""
    listed = {code for code, told in read_codes().items() if not told.reasons}
    assert _used() == listed
    assert {code[:4] for code in read_codes()} == set(GROUPS)
    assert list(read_codes()) == sorted(read_codes())


def test_examples_are_messages_that_the_code_makes() -> None:
    """Each fits the source of an error with its code, with any values in it."""
    patterns: dict[str, list[re.Pattern[str]]] = {}
    for _, message in _messages():
        shown = _literal(message, "\0")
        for found in ENDS_WITH_CODE.finditer(shown):
            pattern = re.escape(shown).replace("\0", ".*").replace("\\\0", ".*")
            patterns.setdefault(found[1], []).append(re.compile(pattern, re.DOTALL))
    for code, told in read_codes().items():
        if told.reasons:
            continue
        assert told.example.partition("\n")[0].endswith(f"[{code}]"), code
        own = patterns.get(code, [])
        # Those of `with_code` and of the command line are no calls of an error's class.
        assert not own or any(pattern.search(told.example) for pattern in own), code


def test_tests_pin_codes() -> None:
    """A pin of prose keeps everybody from mending a sentence. Facts may stand before the code."""
    bare = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        source = path.read_text(encoding="utf-8")
        for call in ast.walk(ast.parse(source)):
            is_raises = isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "raises"
            if not is_raises or "recipes" in path.parts or not isinstance(call, ast.Call):
                continue
            names = {getattr(argument, "id", "") for argument in call.args}
            for keyword in call.keywords if names & _error_names() else ():
                pin = _literal(keyword.value, "")
                if keyword.arg == "match" and pin and re.search(r"[A-Z]{2,}\d{4}", pin) is None:
                    bare.append(f"{path.relative_to(ROOT)}:{call.lineno}: {pin}")
    assert not bare


def page() -> str:
    """Return the page of all codes."""
    lines = [
        "# Errors and reasons",
        "",
        "Each error ends its line with a code. Search this page for it. In Python it is",
        "`error.code`. A code keeps its meaning in later versions; words may change.",
        "Plugins use a prefix of their own. Reasons have their codes in the summary of a run.",
    ]
    for code, told in read_codes().items():
        if (title := f"## {GROUPS[code[:4]]}") not in lines:
            lines += ["", title]
        lines += ["", f"### {code}", "", told.cause, "", f"**Do**: {told.fix}"]
        if told.reasons:
            shown = (f"`{own}...`" if own.endswith("_") else f"`{own}`" for own in told.reasons)
            lines += ["", f"Reasons: {', '.join(shown)}"]
        else:
            lines += ["", "```text", f"error: {told.example}", "```"]
    return "\n".join(lines) + "\n"


def test_the_page_is_made_from_the_list() -> None:
    """Protects from a page that an edit of the list has left behind."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_an_error_knows_its_code_also_after_pickling() -> None:
    """Workers send errors to the driver."""
    error = pickle.loads(pickle.dumps(ConfigError("no column 'a' [QA0305]")))
    assert (error.code, error.text) == ("QA0305", "no column 'a'")
    several = ConfigError("one: wrong [QA0202]\ntwo: unknown [QA0203]")
    assert (several.code, several.text) == ("QA0202", "one: wrong\ntwo: unknown")
    assert ConfigError("of a plugin [WORDS0001]").code == "WORDS0001"
    assert QAEvalError("none [as such]").code == ""
    failed = RowFailedError("mine failed", 3).at("a.parquet", 10)
    assert str(pickle.loads(pickle.dumps(failed))) == "mine failed, on row a.parquet:13 [QA0213]"


def test_the_first_line_has_the_code_behind_words_of_several_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Libraries end their words with a line of their own."""
    say_error(ConfigError("a.parquet: cannot decode: bad thrift\npage 3\n [QA0304]"))
    assert capsys.readouterr().err == (
        "error: a.parquet: cannot decode: bad thrift [QA0304]\n  page 3\n  \n"
    )
    say_error("one [QA0202]\ntwo [QA0203]")
    assert capsys.readouterr().err == "error: one [QA0202]\n  two [QA0203]\n"


def test_a_message_keeps_the_code_that_it_has() -> None:
    """Of two codes a reader would not know which to look up."""
    assert with_code("full [QA0001]", "QA0002") == "full [QA0001]"
    assert with_code("full", "QA0002") == "full [QA0002]"


@pytest.mark.parametrize("reason", [own for told in read_codes().values() for own in told.reasons])
def test_reasons_of_the_list_are_in_the_code(reason: str) -> None:
    """A reason that no family gives is a misspelling."""
    stem = reason.removesuffix("_")
    is_composed = reason.startswith("empty_")  # f"empty_{role}"
    source = "".join(path.read_text(encoding="utf-8") for path in _trees())
    assert is_composed or f'"{stem}"' in source or f'"{stem}_' in source
    assert code_of_reason(reason)


def test_errors_have_one_base() -> None:
    """What has a code is one family of classes, so that ``except QAEvalError`` has them all."""
    own = [value for value in vars(errors).values() if isinstance(value, type)]
    ours = [kind for kind in own if kind.__module__ == errors.__name__]
    assert ours
    assert [kind.__name__ for kind in ours if not issubclass(kind, QAEvalError)] == []


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
