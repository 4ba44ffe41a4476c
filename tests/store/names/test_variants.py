"""Groups a repository's files into models, and chooses among them."""

from __future__ import annotations

import pytest

from edgeagent.errors import ModelNotFound
from edgeagent.store.names.parsing import PREFERRED, HubName, Variant, canonical_name, choose, quant_label, variants

LABELS = {
    "qwen2.5-0.5b-instruct-q4_k_m.gguf": "Q4_K_M",
    "Model.IQ2_XXS.gguf": "IQ2_XXS",
    "gemma-3-1b-it-UD-Q4_K_XL.gguf": "Q4_K_XL",
    "gpt-oss-20b-mxfp4.gguf": "MXFP4",
    "m-TQ1_0.gguf": "TQ1_0",
    "m_f16.gguf": "F16",
    "BF16/m-00001-of-00004.gguf": "BF16",
    "Q8_0/m-Q6_K-00001-of-00002.gguf": "Q6_K",
    "Q4_0.gguf": "Q4_0",
    "model.gguf": None,
    "q4.gguf": None,
    "modelQ4_0.gguf": None,
}


@pytest.mark.parametrize("file, label", LABELS.items())
def test_labels(file: str, label: str | None) -> None:
    assert quant_label(file) == label


def test_every_preferred_label_is_recognised() -> None:
    assert [quant_label(f"m-{label}.gguf") for label in PREFERRED] == list(PREFERRED)


def test_files_become_models() -> None:
    files = [
        "a-Q4_0.gguf",
        "b-00002-of-00002.gguf",
        "b-00001-of-00002.gguf",
        "torn-00001-of-00003.gguf",
        "torn-00003-of-00003.gguf",
        "mmproj-a-F16.gguf",
        "imatrix.gguf",
        "README.md",
    ]
    assert variants(files) == (
        Variant(("a-Q4_0.gguf",), "Q4_0"),
        Variant(("b-00001-of-00002.gguf", "b-00002-of-00002.gguf"), None),
    )


def models(*files: str) -> tuple[Variant, ...]:
    return variants(files)


def chosen(files: tuple[Variant, ...], name: HubName) -> str:
    return choose(files, name, "here").files[0]


def test_the_usual_choice() -> None:
    name = HubName("o/r")
    assert chosen(models("m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-F16.gguf"), name) == "m-Q4_K_M.gguf"
    assert chosen(models("m-Q8_0.gguf", "m-Q4_0.gguf"), name) == "m-Q4_0.gguf"
    assert chosen(models("m-F16.gguf", "m-Q8_0.gguf"), name) == "m-Q8_0.gguf"
    assert chosen(models("whatever.gguf"), name) == "whatever.gguf"


def test_a_quantization_or_a_file() -> None:
    files = models("m-Q8_0.gguf", "m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf", "d-Q4_K_M.gguf")
    assert chosen(files, HubName("o/r", quant="q8_0")) == "m-Q8_0.gguf"
    assert chosen(files, HubName("o/r", quant="ud-q4_k_xl")) == "m-UD-Q4_K_XL.gguf"
    assert chosen(files, HubName("o/r", file="d-Q4_K_M.gguf")) == "d-Q4_K_M.gguf"


def test_what_is_ambiguous_lists_the_choices() -> None:
    files = models("m-Q8_0.gguf", "m-Q4_K_M.gguf", "d-Q4_K_M.gguf")
    for name in (HubName("o/r"), HubName("o/r", quant="Q4_K_M")):
        with pytest.raises(ModelNotFound, match=r"any of o/r/d-Q4_K_M.gguf, o/r/m-Q4_K_M.gguf: name one"):
            choose(files, name, "here")
    with pytest.raises(ModelNotFound, match=r"any of o/r/one.gguf, o/r/two.gguf"):
        choose(models("one.gguf", "two.gguf"), HubName("o/r"), "here")


def test_what_is_not_there_lists_what_is() -> None:
    files = models(*(f"m{number}-Q4_0.gguf" for number in range(30)), "m-Q8_0.gguf")
    with pytest.raises(ModelNotFound, match=r"no Q5_0 here; it has o/r:Q8_0, .* and 11 more"):
        choose(files, HubName("o/r", quant="Q5_0"), "here")
    with pytest.raises(ModelNotFound, match="holds no GGUF model here"):
        choose((), HubName("o/r"), "here")


def test_canonical_names_lead_back_to_their_model() -> None:
    files = models("m-Q8_0.gguf", "m-Q4_K_M.gguf", "d-Q4_K_M.gguf", "plain.gguf")
    names = [canonical_name(files, model, "o/r") for model in files]
    assert [choose(files, name, "here") for name in names] == list(files)
    assert {str(name) for name in names} == {"o/r:Q8_0", "o/r/m-Q4_K_M.gguf", "o/r/d-Q4_K_M.gguf", "o/r/plain.gguf"}
