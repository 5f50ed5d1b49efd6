"""Leftovers: files that killed processes did not finish below OUT, and who takes them away.

An object store has none: what was not sent whole is no object, and its parts are taken away by the
bucket's own rule.
"""

from __future__ import annotations

from qaeval_core.storage import files
from qaeval_core.store.row_ranges import RowRange
from qaeval_core.store.store import COMMIT_NAME, OWN_FOLDERS, Store


def remove_leftovers(store: Store) -> None:
    """Delete temporary files of killed runs, and nothing else; call it with the lock held."""
    out = store.out.local
    if out is None:
        return
    files.remove_temporaries(out, is_deep=False)
    for name in OWN_FOLDERS:
        files.remove_temporaries(out / name)


def remove_leftovers_of(store: Store, family: str, file_id: str, rows: RowRange) -> None:
    """Delete what died workers left of a shard, and of parts of it; call it before a new attempt.

    A worker that is frozen, not dead, finds its file gone and writes it again.
    """
    folder = store.family_folder(family).local
    if folder is None:
        return

    def is_own(name: str) -> bool:
        found = COMMIT_NAME.match(name)
        return (
            found is not None
            and found["file"] == file_id
            and int(found["start"]) in range(rows.start, rows.stop)
        )

    store.call(
        lambda: files.remove_temporaries(folder, is_deep=False, of=is_own),
        f"cannot look at {folder}",
    )
