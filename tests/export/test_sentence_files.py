"""Folders of sentence-transformers, whatever version wrote them: its own numbers, or a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from tokenizers import Tokenizer
from transformers import AutoConfig

from helpers import as_table, build_needed
from qaeval_core import Scorer
from qaeval_core.configure import load_config
from qaeval_core.errors import ExportError, QAEvalError
from qaeval_core.models.registry import resolve_model
from qaeval_export.sentence_files import SentenceFiles
from sentence_models import PAIRS, WIDTH, cosines, predictions, write_plain

pytestmark = pytest.mark.slow

MAIN = "config_sentence_transformers.json"
WRITTEN = Path(__file__).parent / "written_by"
ROWS = [{"candidate": candidate, "references": [reference]} for candidate, reference in PAIRS]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with plain models of transformers: an encoder and a classifier."""
    folder = tmp_path_factory.mktemp("plain")
    write_plain(folder)
    return folder


def bi_encoder(folder: Path, plain: Path, *, pooling: str = "mean", **given: Any) -> Path:
    """Save a bi-encoder; the library's own settings are given to its transformer."""
    modules = [Transformer(str(plain / "encoder"), **given), Pooling(WIDTH, pooling_mode=pooling)]
    SentenceTransformer(modules=[*modules, Normalize()], device="cpu").save(
        str(folder), create_model_card=False
    )
    return folder


def change(folder: Path, file: str, **fields: object) -> None:
    path = folder / file
    known = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**known, **fields}))


def own_cosines(folder: Path) -> list[float]:
    return own_scores("bi_encoder", "encoder", folder)


def own_predictions(folder: Path) -> list[float]:
    return own_scores("sas", "cross_encoder", folder)


def own_scores(metric: str, role: str, folder: Path) -> list[float]:
    """Score with graphs that are built in this process, which has torch already."""
    build_needed(load_config(overrides={f"metrics.{metric}.{role}": str(folder)}))
    return scores_as_users_get_them(metric, role, folder)


def scores_as_users_get_them(metric: str, role: str, folder: Path) -> list[float]:
    """Score with a graph that a process of its own exports if nobody has."""
    found = as_table(Scorer({metric: {role: str(folder)}}).score(ROWS))
    return [float(value) for value in found[metric].to_pylist()]


BI_ENCODERS: dict[str, Callable[[Path, Path], Path]] = {
    "cut at 8": lambda folder, plain: bi_encoder(folder, plain, max_seq_length=8),
    "first token": lambda folder, plain: bi_encoder(folder, plain, pooling="cls"),
    "largest": lambda folder, plain: bi_encoder(folder, plain, pooling="max"),
    "lower case": lambda folder, plain: lowered(folder, plain),
}


def lowered(folder: Path, plain: Path) -> Path:
    change(bi_encoder(folder, plain), "sentence_bert_config.json", do_lower_case=True)
    return folder


@pytest.mark.parametrize("version", sorted(path.name for path in WRITTEN.iterdir()))
def test_folders_of_each_version_say_what_their_library_said(version: str) -> None:
    """Their scores were kept beside them when they were written."""
    expected = json.loads((WRITTEN / version / "scores.json").read_text())
    bi, cross = (WRITTEN / version / kind for kind in ("bi", "cross"))
    found = {
        "bi": scores_as_users_get_them("bi_encoder", "encoder", bi),
        "cross": own_predictions(cross),
    }
    for kind, values in found.items():
        assert values == pytest.approx(expected[kind], abs=1e-4), kind


@pytest.mark.parametrize("name", BI_ENCODERS)
def test_a_bi_encoder_says_what_the_library_says(name: str, plain: Path, tmp_path: Path) -> None:
    """A bound that moved to another file was not seen, and ``_truncated`` said 0."""
    folder = BI_ENCODERS[name](tmp_path / "bi", plain)
    assert own_cosines(folder) == pytest.approx(cosines(folder), abs=1e-4)


def test_older_files_say_the_same(plain: Path, tmp_path: Path) -> None:
    """Before 6 the length and the way to pool had other names, in other files."""
    folder = bi_encoder(tmp_path / "bi", plain, max_seq_length=8, pooling="cls")
    expected = cosines(folder)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    change(folder, "tokenizer_config.json", **{**tokenizer, "model_max_length": 512})
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 8, "do_lower_case": False})
    )
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": WIDTH, **flags})
    )
    assert cosines(folder) == pytest.approx(expected, abs=1e-6)
    assert own_cosines(folder) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("activation", [torch.nn.Sigmoid, torch.nn.Identity])
@pytest.mark.parametrize(
    "place",
    ["as saved", pytest.param("config.json", marks=pytest.mark.long), "the oldest name"],
)
def test_a_cross_encoder_says_what_the_library_says(
    activation: type[torch.nn.Module], place: str, plain: Path, tmp_path: Path
) -> None:
    """A reranker's logits went through a sigmoid that its files do not name."""
    folder = tmp_path / "cross"
    CrossEncoder(
        str(plain / "cross"), device="cpu", max_length=16, activation_fn=activation()
    ).save_pretrained(str(folder), create_model_card=False)
    if place != "as saved":
        (folder / MAIN).unlink()
        path = f"{activation.__module__}.{activation.__name__}"
        older = {"sentence_transformers": {"activation_fn": path}}
        oldest = {"sbert_ce_default_activation_function": path}
        change(folder, "config.json", **(older if place == "config.json" else oldest))
    assert own_predictions(folder) == pytest.approx(predictions(folder), abs=1e-4)


def dense(folder: Path, plain: Path) -> Path:
    modules = [Transformer(str(plain / "encoder")), Pooling(WIDTH), Dense(WIDTH, 8)]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    return folder


def changed(file: str, **fields: object) -> Callable[[Path, Path], Path]:
    def make(folder: Path, plain: Path) -> Path:
        bi_encoder(folder, plain)
        change(folder, file, **fields)
        return folder

    return make


REFUSED: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "Dense": (dense, "Dense.*QA0408"),
    "a default prompt": (
        changed(MAIN, prompts={"query": "query: "}, default_prompt_name="query"),
        "'query.*'.*QA0408",
    ),
    "shortened vectors": (changed(MAIN, truncate_dim=8), "8.*QA0408"),
    "another kind": (changed(MAIN, model_type="SparseEncoder"), "SparseEncoder.*QA0408"),
    "the other side": (
        changed("tokenizer_config.json", truncation_side="left"), "QA0408",
    ),
    "a chat": (
        changed("sentence_bert_config.json", processing_kwargs={"chat_template": {"a": 1}}),
        "processing_kwargs.*QA0408",
    ),
    "another task": (
        changed("sentence_bert_config.json", transformer_task="fill-mask"),
        "QA0408",
    ),
    "two letter cases": (
        lambda folder, plain: bi_encoder(folder, plain, do_lower_case=True),
        "QA0408",
    ),
    "another pooling": (
        lambda folder, plain: bi_encoder(folder, plain, pooling="lasttoken"),
        r"\['lasttoken'\].*QA0408",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused_by_name(name: str, plain: Path, tmp_path: Path) -> None:
    """Read past, each of them is another number than the library's."""
    make, said = REFUSED[name]
    folder = make(tmp_path / "bi", plain)
    with pytest.raises(QAEvalError, match=said):
        own_cosines(folder)


@pytest.mark.parametrize(
    ("activation", "said"),
    [(torch.nn.Tanh(), "Tanh.*QA0408"), (None, "Dense.*QA0408")],
)
def test_a_cross_encoder_that_ends_otherwise_is_refused(
    activation: torch.nn.Module | None, said: str, plain: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "cross"
    cross_encoder(folder, plain, activation_fn=activation)
    if activation is None:
        modules = json.loads((folder / "modules.json").read_text())
        modules.append({"idx": 1, "name": "1", "path": "1_Dense", "type": "sentence.Dense"})
        (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(QAEvalError, match=said):
        own_predictions(folder)


def cross_encoder(folder: Path, plain: Path, **given: Any) -> Path:
    CrossEncoder(str(plain / "cross"), device="cpu", **given).save_pretrained(
        str(folder), create_model_card=False
    )
    return folder


def without(folder: Path, file: str, *fields: str) -> None:
    known = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({k: v for k, v in known.items() if k not in fields}))


def files_of(folder: Path, kind: Any = "SentenceTransformer") -> SentenceFiles:
    role = "encoder" if kind == "SentenceTransformer" else "cross_encoder"
    return SentenceFiles(resolve_model(str(folder), role=role), kind)


LETTERS = "Oslo is the King: CAFÉ café 東京, Łódź"
FLAGS: dict[str, dict[str, object]] = {
    "accents stay": {"do_lower_case": True, "strip_accents": False},
    "accents go": {"strip_accents": True},
    "Chinese signs stay together": {"tokenize_chinese_chars": False},
    "a class that reads no flags": {"tokenizer_class": "PreTrainedTokenizerFast"},
    "another class of the kind": {"tokenizer_class": "ElectraTokenizerFast"},
    "flags of a class that reads none": {
        "tokenizer_class": "PreTrainedTokenizerFast", "strip_accents": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("cut", [(), ("do_lower_case",), ("do_lower_case", "tokenizer_class")])
@pytest.mark.parametrize("name", FLAGS)
def test_letters_are_those_that_the_library_reads(
    name: str, cut: tuple[str, ...], plain: Path, tmp_path: Path
) -> None:
    """Flags of tokenizer_config.json, or their defaults, win over tokenizer.json in it."""
    folder = bi_encoder(tmp_path / "bi", plain)
    without(folder, "tokenizer_config.json", *cut)
    change(folder, "tokenizer_config.json", **FLAGS[name])
    own = files_of(folder).with_case(Tokenizer.from_file(str(folder / "tokenizer.json")))
    library = SentenceTransformer(str(folder), device="cpu").tokenizer.backend_tokenizer
    assert own.normalizer.normalize_str(LETTERS) == library.normalizer.normalize_str(LETTERS)


def test_a_space_before_texts_is_the_librarys(plain: Path, tmp_path: Path) -> None:
    """RoBERTa's tokenizers have a flag of their own that wins over tokenizer.json."""
    folder = bi_encoder(tmp_path / "bi", plain)
    rule = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    change(folder, "tokenizer.json", pre_tokenizer=rule)
    change(folder, "tokenizer_config.json", tokenizer_class="RobertaTokenizer")
    own = files_of(folder).with_case(Tokenizer.from_file(str(folder / "tokenizer.json")))
    assert own.pre_tokenizer.pre_tokenize_str("a b")[0][0] == "a"
    change(folder, "tokenizer.json", pre_tokenizer={"type": "Whitespace"})
    with pytest.raises(ExportError, match="pre_tokenizer.*QA0408"):
        files_of(folder).with_case(Tokenizer.from_file(str(folder / "tokenizer.json")))


LAYER = {"text": {"method": "forward", "method_output_name": ["hidden_states", -2]}}
FOREIGN = [{"idx": 0, "name": "0", "path": "", "type": "custom_st.Transformer"}]
NOT_READ: dict[str, tuple[str, dict[str, Any], str]] = {
    "another layer": (
        "sentence_bert_config.json", {"modality_config": LAYER}, "modality_config.*-2.*QA0408"
    ),
    "another method": (
        "sentence_bert_config.json",
        {"modality_config": {"text": {**LAYER["text"], "method": "get_text_features"}}},
        "modality_config.*get_text_features.*QA0408",
    ),
    "no texts": ("sentence_bert_config.json", {"modality_config": {}}, "modality_config.*QA0408"),
    "another output": (
        "sentence_bert_config.json", {"module_output_name": "sentence_embedding"},
        "module_output_name.*'sentence_embedding'.*QA0408",
    ),
    "padding in front": (
        "tokenizer_config.json", {"padding_side": "left"}, "QA0408"
    ),
    "padding in front, in the other file": (
        "tokenizer.json", {"padding": {"direction": "Left"}}, "QA0408"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["SentenceTransformer", "CrossEncoder"])
@pytest.mark.parametrize("name", NOT_READ)
def test_both_kinds_are_refused_for_what_is_not_computed(
    name: str, kind: str, plain: Path, tmp_path: Path
) -> None:
    """They passed for settings without a number, and were another layer's, or a batch's."""
    file, fields, said = NOT_READ[name]
    make = bi_encoder if kind == "SentenceTransformer" else cross_encoder
    folder = make(tmp_path / "model", plain)
    files_of(folder, kind)
    change(folder, file, **fields)
    with pytest.raises(ExportError, match=said):
        files_of(folder, kind)


def test_padding_in_front_changes_no_position_of_roberta(plain: Path, tmp_path: Path) -> None:
    folder = bi_encoder(tmp_path / "bi", plain)
    change(folder, "config.json", model_type="roberta")
    change(folder, "tokenizer_config.json", padding_side="left")
    assert files_of(folder).pooling() == "mean"


@pytest.mark.parametrize("kind", ["SentenceTransformer", "CrossEncoder"])
@pytest.mark.parametrize("path", ["custom_st.{}", "sentence_transformers_of_others.{}", "{}"])
@pytest.mark.parametrize("place", [0, 1])
def test_modules_of_others_are_refused_by_name(
    place: int, path: str, kind: str, plain: Path, tmp_path: Path
) -> None:
    """They were taken for the library's own by the last part of their name."""
    make = bi_encoder if kind == "SentenceTransformer" else cross_encoder
    folder = make(tmp_path / "model", plain)
    modules = json.loads((folder / "modules.json").read_text())
    place = min(place, len(modules) - 1)
    modules[place]["type"] = path.format(modules[place]["type"].rpartition(".")[2])
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ExportError, match=f"{modules[place]['type']}.*QA0408"):
        files_of(folder, kind)


def test_a_folder_of_pooling_that_no_file_names_is_not_looked_at(
    plain: Path, tmp_path: Path
) -> None:
    """The library takes the mean then."""
    folder = bi_encoder(tmp_path / "bi", plain, pooling="cls")
    assert files_of(folder).pooling() == "cls"
    (folder / "modules.json").unlink()
    assert SentenceTransformer(str(folder), device="cpu")[1].pooling_mode == "mean"
    assert files_of(folder).pooling() == "mean"


@pytest.mark.parametrize(
    ("main", "older", "oldest"),
    [
        (None, {"activation_fn": None}, True),
        (None, {"activation_fn": None}, False),
        (None, {"version": "4.0"}, True),
        ({"activation_fn": None}, {"activation_fn": "torch.nn.Identity"}, False),
        ({"activation_fn": None}, {"activation_fn": None}, True),
        ({"activation_fn": "torch.nn.Identity"}, {"activation_fn": None}, False),
    ],
)
def test_a_null_ends_the_search_for_an_activation_where_the_library_ends_it(
    main: dict[str, Any] | None,
    older: dict[str, Any],
    oldest: bool,
    plain: Path,
    tmp_path: Path,
) -> None:
    folder = cross_encoder(tmp_path / "cross", plain)
    if main is None:
        (folder / MAIN).unlink()
    else:
        change(folder, MAIN, **main)
    names = {"sbert_ce_default_activation_function": "torch.nn.Identity"} if oldest else {}
    change(folder, "config.json", sentence_transformers=older, **names)
    config = AutoConfig.from_pretrained(folder)
    library = CrossEncoder(str(folder), device="cpu").activation_fn
    own = files_of(folder, "CrossEncoder").activation(config)
    assert own == type(library).__name__.lower()


def test_all_files_that_say_something_are_in_the_models_name(plain: Path, tmp_path: Path) -> None:
    """An artifact is found by them: a changed activation must not find the old graph."""
    folder = bi_encoder(tmp_path / "bi", plain)
    files = resolve_model(str(folder), role="encoder").files
    assert {MAIN, "modules.json", "sentence_bert_config.json", "tokenizer_config.json",
            "1_Pooling/config.json"} <= set(files)  # fmt: skip
