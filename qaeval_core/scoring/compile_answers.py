"""Compile answers: a metric that judges answers by models, to the passes it reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field

from qaeval_core.config import RunConfig
from qaeval_core.errors import ConfigError
from qaeval_core.given import read_given
from qaeval_core.metrics.model_settings import (
    AnswerSettings,
    BertScoreSettings,
    BiEncoderSettings,
    KpqaSettings,
    MoverScoreSettings,
    SasSettings,
)
from qaeval_core.metrics.settings import Baseline
from qaeval_core.models.artifact import Artifact, ArtifactRequest
from qaeval_core.scoring.compile_models import ResolveArtifact, model_family, model_request
from qaeval_core.scoring.families import FAMILIES
from qaeval_core.scoring.plans import InstancePlan, ModelFamilyPlan
from qaeval_core.signature import Signature, hash_file

Rescaling = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class _Pass:
    """One family that an instance reads: its model and what changes its numbers."""

    family: str
    model: str
    options: Mapping[str, object] = field(default_factory=dict)
    layer: str | None = None
    has_idf: bool = False


def answer_requests(
    settings: AnswerSettings, config: RunConfig, *, device: str
) -> list[ArtifactRequest]:
    """Return the artifacts that an instance runs."""
    return [_request(one, config, device=device) for one in _passes(settings)]


def compile_answers(
    name: str,
    settings: AnswerSettings,
    config: RunConfig,
    *,
    columns: Mapping[str, str],
    device: str,
    resolve_artifact: ResolveArtifact,
    corpus: str,
) -> tuple[list[ModelFamilyPlan], InstancePlan]:
    """Return the families and the instance of a metric; see `compile_run`.

    Raises
    ------
    ConfigError
        If KPQA's two models do not split texts alike, or a file of baselines does not fit.
    """
    plans: list[ModelFamilyPlan] = []
    read: dict[str, ModelFamilyPlan] = {}
    for one in _passes(settings):
        artifact = resolve_artifact(_request(one, config, device=device))
        given: dict[str, str] = {}
        if one.has_idf:
            counted = _frequencies(artifact, config, columns)
            plans.append(counted)
            given = {
                "after": counted.key,
                "frequencies_path": f"corpus/{counted.key}-{corpus}.parquet",
                "words": counted.words,
                "corpus": corpus,
            }
        kind = FAMILIES[one.family]
        read[one.family] = model_family(
            kind, artifact, config, options=one.options, columns=columns, **given
        )
    if isinstance(settings, KpqaSettings):
        _check_tokenisers(name, read)
    rescaling, shown = None, settings.model_dump(mode="json", exclude={"metric"})
    if isinstance(settings, BertScoreSettings) and settings.baseline is not None:
        layer = next(iter(read.values())).artifact.record.n_layers
        rescaling = read_rescaling(settings.baseline, layer=layer)
        shown["baseline"] = hash_file(settings.baseline)
    plans += read.values()
    if isinstance(settings, SasSettings):
        # What a configuration says is not in the artifact's hash.
        shown["activation"] = activation_of(settings, read["sas"].artifact)
    shown["families"] = ",".join(plan.key for plan in plans)
    signature = Signature(settings.metric, shown, "1")
    return plans, InstancePlan(name, settings, read, Baseline(), signature, rescaling)


def activation_of(settings: SasSettings, artifact: Artifact) -> str:
    """Return what becomes of a logit: asked for, or of the model's configuration."""
    if settings.activation != "model":
        return settings.activation
    return artifact.record.activation or "identity"


def _passes(settings: AnswerSettings) -> list[_Pass]:
    if isinstance(settings, SasSettings):
        return [_Pass("sas", settings.cross_encoder)]
    if isinstance(settings, BiEncoderSettings):
        return [_Pass("bi_encoder", settings.encoder)]
    if isinstance(settings, BertScoreSettings):
        is_free = settings.metric == "bertscore_free"
        options = {"special_tokens": settings.special_tokens, "idf": settings.idf}
        family = "token_match_context" if is_free else "token_match"
        return [_Pass(family, settings.encoder, options, str(settings.layer), settings.idf)]
    if isinstance(settings, MoverScoreSettings):
        options = {"idf": settings.idf}
        return [
            _Pass("token_transport", settings.encoder, options, str(settings.layer), settings.idf)
        ]
    if isinstance(settings, KpqaSettings):
        has_idf = settings.profile == "authors"
        options = {"special_tokens": "match", "idf": has_idf}
        shown = {"show_weights": True} if settings.show_weights else {}
        return [
            _Pass("kpqa_weights", settings.keyphrase_classifier, shown),
            _Pass("token_match", settings.encoder, options, str(settings.layer), has_idf),
        ]
    raise TypeError(f"{settings.metric} judges no answers by models")


def _request(one: _Pass, config: RunConfig, *, device: str) -> ArtifactRequest:
    options = {} if one.layer is None else {"layer": one.layer}
    return model_request(FAMILIES[one.family], one.model, config, device=device, options=options)


def _frequencies(
    artifact: Artifact, config: RunConfig, columns: Mapping[str, str]
) -> ModelFamilyPlan:
    """Return the count of documents that idf waits for."""
    return model_family(
        FAMILIES["token_frequencies"],
        artifact,
        config,
        options={},
        columns=columns,
        words=f"tokens of {artifact.record.tokenizer_hash[:12]}",
    )


def _check_tokenisers(name: str, read: Mapping[str, ModelFamilyPlan]) -> None:
    """Check that weights and vectors are of the same tokens."""
    records = {family: plan.artifact.record for family, plan in read.items()}
    weights, vectors = records["kpqa_weights"], records["token_match"]
    if weights.tokenizer_hash != vectors.tokenizer_hash:
        raise ConfigError(
            f"metrics.{name}: weights belong to word pieces, and keyphrase_classifier "
            f"{weights.model.name!r} splits texts otherwise than encoder {vectors.model.name!r}; "
            "take models with one tokenizer.json"
        )


def read_rescaling(path: str, *, layer: int) -> Rescaling:
    """Return the baselines of P, R and F of a layer from a file as bert-score has them.

    Parameters
    ----------
    path : str
        Comma-separated, with the header ``LAYER,P,R,F``.
    layer : int
        Hidden state that is matched.

    Raises
    ------
    ConfigError
        If the file cannot be read, or has no such layer.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(read_given(path), newline="")))
        found = {int(row["LAYER"]): row for row in rows}
    except OSError as error:
        raise ConfigError(f"cannot read baselines {path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError, csv.Error):
        raise ConfigError(
            f"{path} is no file of baselines: its header is not LAYER,P,R,F"
        ) from None
    if layer not in found:
        known = ", ".join(map(str, sorted(found)))
        raise ConfigError(f"{path} has no baseline of layer {layer}; it has {known}")
    try:
        precision, recall, f1 = (float(found[layer][name]) for name in ("P", "R", "F"))
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{path}: layer {layer} has no numbers P, R and F") from None
    if not all(-1 <= value < 1 for value in (precision, recall, f1)):  # Nor is NaN.
        raise ConfigError(
            f"{path}: baselines of layer {layer} are {precision:g}, {recall:g} and {f1:g}; they "
            "are cosines, -1 or more and below 1"
        )
    return precision, recall, f1
