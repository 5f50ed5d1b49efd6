"""YAML files: sections of a file as plain values, and what is wrong with them.

An alias, a key that stands twice and a value that cannot be held are errors with their line.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from qaeval_core.errors import ConfigError, nearest, with_code
from qaeval_core.storage.wary import read_given

_MERGE = "tag:yaml.org,2002:merge"


class StrictYamlError(ValueError):
    """A text is no YAML, or more than is taken; says where, and quotes nothing of it.

    ``is_beyond``: it is YAML, but of values that cannot be held.
    """

    def __init__(self, message: str, *, is_beyond: bool = False) -> None:
        super().__init__(message)
        self.is_beyond = is_beyond


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, "aliases (*name) are not allowed: write the value", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, "a key is given twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def load_yaml(text: str) -> Any:
    r"""Return what a YAML text holds: mappings, sequences and plain values.

    Raises
    ------
    StrictYamlError
        If it is no YAML, has an alias or a key twice, or cannot be held as values.

    Examples
    --------
    >>> load_yaml("f1: {language: de}")
    {'f1': {'language': 'de'}}
    >>> load_yaml("a: &x 1\nb: *x")
    Traceback (most recent call last):
    ...
    qaeval_core.yaml_files.StrictYamlError: line 2, column 4: aliases (*name) are not allowed: ...
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise StrictYamlError(f"{where}{error.problem or 'it cannot be read'}") from None
    except yaml.YAMLError:
        raise StrictYamlError("it holds characters that YAML does not allow") from None
    except RecursionError:
        raise StrictYamlError("it is nested too deep", is_beyond=True) from None
    except (ValueError, TypeError, OverflowError):
        # A number of 5,000 digits, a 31st of February: what Python says may quote it.
        raise StrictYamlError("it holds an impossible number or date", is_beyond=True) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the sections of a YAML file.

    Raises
    ------
    ConfigError
        If it cannot be read, or holds no mapping.
    """
    try:
        tree = load_yaml(read_given(path))
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror} [QA0201]") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not YAML: it is not UTF-8 [QA0201]") from None
    except StrictYamlError as error:
        raise ConfigError(f"{path} is not YAML: {error} [QA0201]") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} must hold a mapping of sections [QA0201]")
    return tree


def explained(
    error: ValidationError, section: type[BaseModel], *, where: Sequence[str] = ()
) -> list[str]:
    """Return what is wrong with a section, a line a setting."""
    lines = []
    items = error.errors(include_url=False)
    for item in items:
        if item["loc"][-1:] == ("str",) and len(items) > 1:
            continue  # The other branch of a union says what is wrong.
        full = [str(part) for part in item["loc"]]
        place = [*where, *(part for part in full if not _is_branch(part, section))]
        if item["type"] == "extra_forbidden":
            known = _fields_at(section, full[:-1])
            lines.append(f"unknown key {'.'.join(place)!r}{nearest(place[-1], known)} [QA0203]")
        else:
            message = item["msg"].removeprefix("Value error, ")
            lines.append(with_code(f"{'.'.join(place)}: {message}" if place else message, "QA0202"))
    return lines


def _is_branch(part: str, section: type[BaseModel]) -> bool:
    """Whether a part of an error's place is no key: pydantic's name of a branch of a union."""
    is_class = "metrics" not in section.model_fields and part[:1].isupper()  # Else any name.
    return is_class or part in ("str", "[key]")


def _fields_at(model: type[BaseModel], parts: Sequence[str]) -> list[str]:
    for part in parts:
        field = model.model_fields.get(part)
        if field is None:
            continue  # The instance name below metrics, or a branch of a union.
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                model = kind
    return list(model.model_fields)
