"""Folder: the OUT of a training job: one writer, one configuration, results in place at once."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from qaeval_core.errors import ConfigError, StoreLockedError
from qaeval_core.storage.files import open_lock, write_json

_RECORD = "training.json"
_SUCCESS = "_SUCCESS"


def flush(folder: Path) -> None:
    """Wait until the files of a folder are on the disk."""
    for path in [*(p for p in folder.rglob("*") if p.is_file()), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class OutFolder:
    """The folder of one training.

    Parameters
    ----------
    path : Path
        Made when it is first written to.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    @property
    def is_finished(self) -> bool:
        """Whether everything is written."""
        return (self.path / _SUCCESS).is_file()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the right to write; it ends with the process.

        Raises
        ------
        StoreLockedError
            If another process holds it.
        ConfigError
            If the folder holds something else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"--out {self.path} is a file; name a folder [QA0111]")
        foreign = self.path.is_dir() and any(self.path.iterdir())
        if foreign and not (self.path / _RECORD).exists() and not (self.path / ".lock").exists():
            raise ConfigError(f"--out {self.path} holds other files; choose a new folder [QA0110]")
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            file = open_lock(self.path / ".lock")
        except OSError as error:
            raise ConfigError(
                f"cannot write to --out {self.path}: {error.strerror} [QA0111]"
            ) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise StoreLockedError(
                f"another training is writing to {self.path}; wait for it, or choose another --out "
                "[QA0505]"
            ) from None
        finally:
            os.close(file)

    def check_record(self, record: Mapping[str, Mapping[str, object]]) -> None:
        """Write what decides the result, or compare it with what is written.

        Parameters
        ----------
        record : mapping of section to mapping of option to value

        Raises
        ------
        ConfigError
            If the folder was begun with another value; names the option.
        """
        path = self.path / _RECORD
        if not path.exists():
            write_json(path, record)
            return
        before = json.loads(path.read_text(encoding="utf-8"))
        now = json.loads(json.dumps(record))
        for section, options in now.items():
            for option, value in options.items():
                old = before.get(section, {}).get(option)
                if old != value:
                    raise ConfigError(
                        f"{self.path} was started with {_said(option, old)}, now it is "
                        f"{_said(option, value)}; use the old value, or another --out [QA0110]"
                    )

    @contextmanager
    def result(self, name: str) -> Iterator[Path]:
        """Yield a new folder that takes its name when it is whole."""
        temporary = self.path / f".building-{name}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for path in temporary.iterdir():
            path.chmod(0o644)  # Weights are written for their owner alone; others load them, too.
        flush(temporary)
        shutil.rmtree(self.path / name, ignore_errors=True)
        temporary.replace(self.path / name)

    def finish(self) -> None:
        """Say that everything is there, then delete the checkpoints."""
        (self.path / _SUCCESS).touch()
        flush(self.path)
        shutil.rmtree(self.checkpoints, ignore_errors=True)


def _said(option: str, value: object) -> str:
    if isinstance(value, bool):
        return option if value else f"no {option}"
    if isinstance(value, list):  # Files, each with its hash.
        return f"{option} " + " ".join(f"{v['name']} ({v['sha256'][:12]})" for v in value)
    return f"{option} {value}" if value is not None else f"no {option}"
