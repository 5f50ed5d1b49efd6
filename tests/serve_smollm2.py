"""The process of ``served_model``: the command ``transformers serve``, ended with its parent.

A program of its own: it runs without the tests' modules, some of which are named as libraries are.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from qaeval_core.models.registry import resolve_model

# The server takes what a request does not say from here. Without do_sample it would always take
# the likeliest token, whatever the temperature, and top_k would be 50.
GENERATION = {"do_sample": True, "top_k": 0, "bos_token_id": 1, "eos_token_id": 2}


def write_model(folder: Path) -> None:
    """Write the embedded model in the files that the server loads; GGUF it loads in part only."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = resolve_model("smollm2-135m", role="causal_lm")
    files = {"gguf_file": source.gguf_file}
    model = AutoModelForCausalLM.from_pretrained(source.folder, dtype=torch.float32, **files)
    # The weights are plain numbers now; with these two the model counts as quantized still.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.folder, **files).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(GENERATION), encoding="utf-8")


def _end_with_parent() -> None:
    """End this process when its standard input ends, which it does when the parent dies."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    from transformers.cli.transformers import main

    threading.Thread(target=_end_with_parent, daemon=True).start()
    write_model(Path(sys.argv[2]))
    main()
