"""Learn: a rank from labeled rows: weights of columns, learned on a third of them.

The others certify: what had a part in the rank says nothing of its precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from qaeval_core.errors import ConfigError
from qaeval_core.filter.labels import Labels, labeled_rows
from qaeval_core.filter.plan import CombinedRank, FilterPlan, features_of
from qaeval_core.filter.scan import ScanPlan
from qaeval_core.stats.learned_rank import LearnedRank, fit_rank, id_hash, is_learning
from qaeval_core.tables.corpus import RangeTask
from qaeval_core.tables.range_reader import RangeReader
from qaeval_core.text.column_hashes import column_hashes

_ROW, _ID, _GROUP = "\0row", "\0id", "\0group"


@dataclass(frozen=True, slots=True)
class Learned:
    """A learned rank, and how many labels it was not learned from."""

    rank: LearnedRank
    n_certifying: int

    def combined(self) -> CombinedRank:
        """Return it as a rank of rows."""
        return CombinedRank(self.rank)

    def lines(self) -> Iterator[str]:
        """Yield what a user should know: whether the combination is better than one column."""
        found = self.rank
        auc = "undefined" if found.cv_auc is None else f"{found.cv_auc:.3f}"
        yield (
            f"learned on {found.n_rows:,} labels of {found.n_groups:,} groups, "
            f"{self.n_certifying:,} labels left to certify; AUC of the combination {auc} "
            f"({found.n_folds} folds of groups)"
        )
        for column in found.columns:
            alone = "undefined" if column.single_auc is None else f"{column.single_auc:.3f}"
            yield f"  {column.name}: weight {column.weight:+.3f}, AUC alone {alone}"


def look_up(task: RangeTask, plan: ScanPlan) -> pa.Table:
    """Return the labeled rows of a range: number, id, group and features.

    Raises
    ------
    InputChangedError, StorageError, UnreadableFileError
        If rows cannot be read.
    """
    group = plan.stages.group
    names = list(dict.fromkeys([*plan.features, *([group] if group else [])]))
    reader = RangeReader(
        task,
        names=names,
        score_names=plan.score_names,
        id_column=plan.id_column,
        outages=plan.outages,
    )
    wanted = pa.array(plan.wanted_ids, pa.string())
    parts = [_none(plan)]
    for rows, table, ids in reader:
        chosen = pc.is_in(ids, value_set=wanted)
        places = np.flatnonzero(np.asarray(chosen))
        own, own_ids = table.take(places), ids.take(pa.array(places))
        features = features_of(pl.DataFrame(pl.from_arrow(own)), plan.features)
        columns = {
            _ROW: pa.array(task.file.start + rows.start + places, pa.int64()),
            _ID: own_ids.cast(pa.string()),
            _GROUP: _group_names(own, group, own_ids),
            **{name: pa.array(features[:, i]) for i, name in enumerate(plan.features)},
        }
        parts.append(pa.table(columns, schema=parts[0].schema))
    reader.close()
    return pa.concat_tables(parts)


def _none(plan: ScanPlan) -> pa.Table:
    fields = [(_ROW, pa.int64()), (_ID, pa.string()), (_GROUP, pa.string())]
    return pa.schema([*fields, *((name, pa.float64()) for name in plan.features)]).empty_table()


def _group_names(table: pa.Table, group: str | None, ids: pa.ChunkedArray) -> pa.Array:
    """Return a name of each row's group; its id where it has none."""
    own = [f"id:{name}" for name in ids.to_pylist()]
    if group is None or not table.num_rows:
        return pa.array(own, pa.string())
    hashes, is_there = column_hashes(table[group])
    return pa.array(
        [
            f"{code:016x}" if there else name
            for code, there, name in zip(hashes, is_there, own, strict=True)
        ],
        pa.string(),
    )


def learn_rank(plan: FilterPlan, table: pa.Table, labels: Labels) -> Learned:
    """Return a rank learned from the labeled rows of a corpus.

    Raises
    ------
    ConfigError
        If the labels to learn from are all good or all bad, or too few.
    SchemaError
        If a labeled id is of no row, or of several.
    """
    request = plan.request
    pairs = zip(table[_ROW].to_pylist(), table[_ID].to_pylist(), strict=True)
    # A blank row teaches nothing, whatever it counts as.
    labeled = labeled_rows(replace(labels, blank=()), pairs, request.labels_name)
    table = table.take(np.argsort(table[_ROW].to_numpy(), kind="stable"))
    groups = table[_GROUP].to_pylist()
    learns = is_learning(labeled.ids, request.seed)
    features = np.column_stack([table[name].to_numpy() for name in request.learn])
    try:
        rank = fit_rank(
            features[learns],
            {name: plan.signatures[name] for name in request.learn},
            is_good=labeled.is_good[learns],
            groups=[name for name, own in zip(groups, learns, strict=True) if own],
            seed=request.seed,
        )
    except ConfigError as error:
        raise ConfigError(
            f"--learn on {int(learns.sum()):,} of {len(learns):,} labels: {error}"
        ) from None
    taught = tuple(map(id_hash, labeled.ids[learns]))
    return Learned(replace(rank, learned_from=taught), int((~learns).sum()))
