"""bfloat16: what it does to each metric on sets that people have judged.

``python -m benchmarks.bf16`` scores rows of judged sets in fp32 and by OpenVINO in bfloat16, which
needs a CPU with ``amx_bf16`` or ``avx512_bf16``. ``--rounded`` asks for no such CPU: ONNX Runtime
computes in fp32, and every value that leaves an operator, and every weight, is rounded to bfloat16.
OpenVINO may keep more of them in fp32.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import onnx
import polars as pl
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from scipy.stats import spearmanr

from benchmarks.judged_sets import JUDGED
from benchmarks.measure import environment
from qaeval_core import Scorer
from qaeval_core.configure import load_config
from qaeval_core.models import session
from qaeval_core.models.engine import LoadedGraph
from qaeval_core.models.onnx_runtime import OnnxRuntime
from qaeval_core.stats.ranking import auc
from qaeval_export.graph_files import save_graph

N_ROWS = 300
# Metric -> the set it is judged on, and the column that is compared.
SUBJECTS = {
    "sas": ("sas", "sas"),
    "bi_encoder": ("sas", "bi_encoder"),
    "bertscore": ("sas", "bertscore_f1"),
    "moverscore": ("sas", "moverscore"),
    "kpqa": ("kpqa_marco", "kpqa_rouge_l"),
    "roundtrip": ("qgeval", "roundtrip"),
    "qrelscore": ("qgeval", "qrelscore"),
}
_ROLES = ("encoder", "causal_lm", "cross_encoder", "keyphrase_classifier", "reader")
Values = NDArray[np.float64]


def rounded(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph that rounds its weights, and what each operator returns, to bfloat16."""
    inferred = onnx.shape_inference.infer_shapes(proto)
    known = [*inferred.graph.value_info, *inferred.graph.output]
    floats = {own.name for own in known if own.type.tensor_type.elem_type == TensorProto.FLOAT}
    floats -= {own.name for own in proto.graph.output}  # What leaves the graph is fp32.
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    del made.graph.value_info[:]
    for tensor in made.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = _rounded(numpy_helper.to_array(tensor))
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    nodes = list(made.graph.node)
    del made.graph.node[:]
    for node in nodes:
        own = [name for name in node.output if name in floats]
        raw = [f"{name}/raw" if name in floats else name for name in node.output]
        del node.output[:]
        node.output.extend(raw)
        made.graph.node.append(node)
        for name in own:
            there = helper.make_node("Cast", [f"{name}/raw"], [f"{name}/bf16"], to=16)
            back = helper.make_node("Cast", [f"{name}/bf16"], [name], to=TensorProto.FLOAT)
            made.graph.node.extend([there, back])
    return made


def _rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return values with 8 bits of mantissa, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).reshape(values.shape)


def open_rounded(path: Path, **given: Any) -> LoadedGraph:
    """Open a graph as a session does, with all its values rounded."""
    with TemporaryDirectory() as folder:
        save_graph(rounded(onnx.load(path)), Path(folder))
        return OnnxRuntime(Path(folder) / "model.onnx", **given)


def scores(metric: str, table: Any, *, is_rounded: bool = False, precision: str = "fp32") -> Values:
    """Return the scores of a metric; NaN where they are undefined."""
    overrides: Mapping[str, object] = {f"models.{role}.precision": precision for role in _ROLES}
    # What is lost is what is to be known.
    lossy = {f"models.{role}.allow_lossy": precision == "bf16" for role in _ROLES}
    engine: AbstractContextManager[Any] = nullcontext()
    if is_rounded:
        engine = mock.patch.object(session, "OnnxRuntime", open_rounded)
    with engine:
        scorer = Scorer([metric], config=load_config(overrides={**overrides, **lossy}), n_threads=1)
        column = scorer.score(table).column(SUBJECTS[metric][1])
    return column.to_numpy(zero_copy_only=False).astype(np.float64)


def measured(n_rows: int, *, is_rounded: bool) -> Iterator[dict[str, Any]]:
    """Yield what bfloat16 does to each metric: differences, ranks, and what tells good from bad."""
    for metric, (name, column) in SUBJECTS.items():
        rows = JUDGED[name]().rows.sample(n_rows, seed=0)
        table = rows.drop("human", "is_good", "cluster").to_arrow()
        plain = scores(metric, table)
        found = (
            scores(metric, table, is_rounded=True)
            if is_rounded
            else scores(metric, table, precision="bf16")
        )
        yield {"column": column, "set": name, **compared(plain, found, rows["is_good"])}


def compared(plain: Values, found: Values, is_good: pl.Series) -> dict[str, Any]:
    """Return how far scores are from those in fp32, and how well both tell good rows."""
    has_both = ~(np.isnan(plain) | np.isnan(found))
    good = is_good.to_numpy()
    away = np.abs(plain - found)[has_both]
    return {
        "rows": int(has_both.sum()),
        "n_undefined_in_one": int((np.isnan(plain) != np.isnan(found)).sum()),
        "max": float(away.max()),
        "mean": float(away.mean()),
        "deviation": float(plain[has_both].std()),
        "spearman": float(spearmanr(plain[has_both], found[has_both]).statistic),
        "auc_fp32": auc(positive=plain[has_both & good], negative=plain[has_both & ~good]),
        "auc_bf16": auc(positive=found[has_both & good], negative=found[has_both & ~good]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=N_ROWS)
    parser.add_argument("--rounded", action="store_true", help="round in fp32, on any CPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all of it here")
    given = parser.parse_args()
    lines = []
    for line in measured(given.rows, is_rounded=given.rounded):
        print(json.dumps(line), flush=True)
        lines.append(line)
    if given.json is not None:
        record = {"environment": environment(1), "is_rounded": given.rounded, "lines": lines}
        given.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
