"""Write pins.json anew: ``PYTHONPATH=tests python tests/pins/write_pins.py``."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

from pins.pinned_configs import pinned

if __name__ == "__main__":
    importlib.metadata.version = lambda name: f"the {name} here"
    lines = [
        f"{json.dumps(name)}: {json.dumps(own, ensure_ascii=False)}"
        for name, own in pinned().items()
    ]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    Path(__file__).with_name("pins.json").write_text(text, encoding="utf-8")
