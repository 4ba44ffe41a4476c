"""`edgeagent list` and `edgeagent show`, in this process, without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeagent.config import StoreConfig
from edgeagent.store import library as library_module
from edgeagent.store.file_records import LastUse
from edgeagent.store.names.own import OwnNamesFile, with_alias
from tests.cli.conftest import Run
from tests.store.gguf_bytes import MODEL_KEYS, STRING, U32, GgufBytes, key, small_model
from tests.store.test_library import put


def test_list_as_a_table(run: Run, store: StoreConfig, tmp_path: Path) -> None:
    path = put(store, "Qwen3-1.7B-Q8_0.gguf", small_model(1, 300_000), repo="Qwen/Qwen3-1.7B-GGUF")
    LastUse(tmp_path / "state").note(path)
    OwnNamesFile(tmp_path / "state").change(lambda names: with_alias(names, "mine", "qwen3-1.7b"))
    status, out, _ = run("list")
    heading, builtin, model = out.splitlines()
    assert status == 0 and heading.split()[:5] == ["name", "architecture", "quant", "size", "context"]
    assert builtin.split()[:2] == ["builtin", "llama"]
    assert model.split()[:7] == ["qwen3-1.7b", "llama", "Q8_0", "300.7", "kB", "512", "attention"]
    assert "qwen3-0.6b" in model and " s ago" in model and "(also mine)" in model


def test_list_as_json(run: Run, tmp_path: Path) -> None:
    (builtin,) = json.loads(run("list", "--json")[1])
    assert (builtin["name"], builtin["architecture"], builtin["context_length"]) == ("builtin", "llama", 512)
    assert (builtin["memory"], builtin["draft"], builtin["loaded_s_ago"], builtin["aliases"]) == (
        *("attention", None, None),
        [],
    )
    (tmp_path / "mini.gguf").write_bytes(b"broken")
    status, out, _ = run("list")
    assert status == 0 and "(damaged: " in out and "it is not a GGUF file" in out
    assert json.loads(run("list", "--json")[1])[0]["is_damaged"] is True
    assert "damaged  " in run("show", "builtin")[1]


def test_list_without_models(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module.Library, "models", lambda _: ())
    assert run("list") == (0, "No models here. `edgeagent pull org/repo` downloads one; "
                              "`edgeagent list --available` shows some.\n", "")  # fmt: skip
    assert json.loads(run("list", "--json")[1]) == []


@pytest.mark.parametrize("command", [("list", "--available"), ("pull",)])
def test_the_catalog(run: Run, store: StoreConfig, command: tuple[str, ...]) -> None:
    put(store, "Qwen3-4B-Q8_0.gguf", small_model(), repo="Qwen/Qwen3-4B-GGUF")
    status, out, _ = run(*command)
    rows = {line.split()[0]: line for line in out.splitlines()}
    here = out.index(" here ")
    assert status == 0 and rows["qwen3-4b"][here:].split()[0] == "yes" and rows["qwen3-8b"][here:].split()[0] == "-"
    assert "Apache-2.0" in rows["qwen3-8b"] and "qwen3-0.6b" in rows["qwen3-8b"]
    records = {record["name"]: record for record in json.loads(run(*command, "--json")[1])}
    assert len(records) >= 20 and records["qwen3-4b"]["is_here"] and not records["qwen3-8b"]["is_here"]
    assert records["qwen3-8b"]["sampling"]["top_k"] == 20


def test_show_a_model_that_is_here(run: Run, store: StoreConfig) -> None:
    path = put(store, "Qwen3-1.7B-Q8_0.gguf", small_model(1, 300_000), repo="Qwen/Qwen3-1.7B-GGUF")
    for name in ("qwen3:1.7b", "Qwen/Qwen3-1.7B-GGUF"):
        status, out, _ = run("show", name)
        facts = dict(line.split("  ", 1) for line in out.splitlines())
        assert status == 0 and facts["name"].strip() == "qwen3-1.7b"
        assert facts["files"].strip() == str(path) and facts["draft"].strip() == "qwen3-0.6b"
        assert "temperature 0.6" in facts["recommended"] and facts["size"].strip() == "300.7 kB"
    record = json.loads(run("show", "qwen3-1.7b", "--json")[1])
    assert record["is_here"] and (record["license"], record["quant"]) == ("Apache-2.0", "Q8_0")


def test_show_a_model_that_is_not_here(run: Run) -> None:
    status, out, _ = run("show", "qwen3:8b")
    assert status == 0 and "`edgeagent pull qwen3:8b` downloads it" in out and "about 5.0 GB" in out
    assert not json.loads(run("show", "qwen3:8b", "--json")[1])["is_here"]


def test_show_a_path(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("show", str(tmp_path / "mini.gguf"))
    assert status == 0 and out.splitlines()[0].split() == ["name", "mini"]


def test_show_tells_of_layers_that_are_not_used(run: Run, tmp_path: Path) -> None:
    path = GgufBytes((*MODEL_KEYS, key("llama.nextn_predict_layers", U32, 1))).write(tmp_path / "predicts.gguf")
    assert "1 (MTP), not used: they need the target's hidden states" in run("show", str(path))[1]
    assert json.loads(run("show", str(path), "--json")[1])["num_prediction_layers"] == 1
    assert "MTP" not in run("show", "builtin")[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("qwen3-8", "near names: qwen3-8b"),
        ("org/none", "org/none is not on this machine: run `edgeagent pull org/none`"),
        ("./none.gguf", "does not exist: check the path"),
        ("not a name", "cannot be a model"),
    ],
)
def test_show_what_is_no_model(run: Run, name: str, message: str) -> None:
    status, out, err = run("show", name)
    assert (status, out) == (2, "") and message in err


def test_a_file_with_the_name_of_a_catalog_model_is_described_by_its_header(run: Run, tmp_path: Path) -> None:
    keys = (key("general.license", STRING, "mit-0"), *MODEL_KEYS)
    path = GgufBytes(keys).write(tmp_path / "phi-4.gguf")
    record = json.loads(run("show", str(path), "--json")[1])
    assert (record["description"], record["license"], record["origin"]) == ("small one", "mit-0", "path")
    assert "repo" not in record and "phi-4-GGUF" not in run("show", str(path))[1]
    path.write_bytes(b"no model")
    assert "fits here  -" in run("show", str(path))[1]
