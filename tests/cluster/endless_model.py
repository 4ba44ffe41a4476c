"""The bundled model without an end: the same weights, but it never ends its answer.

Answers then last as long as the request allows, which is long enough to break something midway. The output matrix is
separate from the embeddings, and its rows for tokens that end a turn are zero.
"""

from __future__ import annotations

from pathlib import Path

import gguf

# The name under which the daemon serves it, which is the file's name.
LOCAL_NAME = "endless"
BUNDLED = Path(__file__).resolve().parents[2] / "models/builtin/edgeagent-mini.gguf"


def write_endless_model(target: Path, source: Path = BUNDLED) -> None:
    """Write `source` to `target` so that it never ends; its output matrix is its embedding matrix."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    scores = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    rows = scores.data.copy()
    rows[[token for token, kind in enumerate(types) if kind == gguf.TokenType.CONTROL]] = 0
    writer.add_tensor("output.weight", rows, raw_dtype=scores.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
