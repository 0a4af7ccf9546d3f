"""LoRA adapters for llama.cpp: read back by the library of the format, and by llama.cpp itself where it is built."""

from random import randrange

import numpy as np
import pytest

from server.errors import Refusal
from server.formats.gguf import ARCHITECTURES, gguf_adapter
from tests.server.formats.models import CONFIGS, METHODS, Taught, base, turned
from tests.server.formats.whole import whole

NAMES = {
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate",
    "up_proj": "ffn_up", "down_proj": "ffn_down",
}  # fmt: skip
"""Of Llama's layers."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return base("llama", tmp_path_factory.mktemp("models") / "llama", seed=randrange(1 << 24))


def read(content: bytes, tmp_path):
    import gguf

    file = tmp_path / "adapter.gguf"
    file.write_bytes(content)
    return gguf.GGUFReader(file)


def changes_in(reader) -> dict[str, np.ndarray]:
    alpha = reader.get_field("adapter.lora.alpha").contents()
    tensors = {tensor.name: np.asarray(tensor.data) for tensor in reader.tensors}
    layers = {name.removesuffix(".lora_a") for name in tensors if name.endswith(".lora_a")}
    assert tensors.keys() == {f"{layer}.{half}" for layer in layers for half in ("lora_a", "lora_b")}
    return {
        layer: alpha / len(tensors[f"{layer}.lora_a"]) * tensors[f"{layer}.lora_b"] @ tensors[f"{layer}.lora_a"]
        for layer in layers
    }


@pytest.mark.parametrize("method", METHODS)
def test_every_adapter_of_factors_is_the_same_change_of_the_same_layers(method, llama, tmp_path):
    taught = Taught(llama, tmp_path, method, seed=randrange(1 << 24), targets=tuple(NAMES))
    reader = read(gguf_adapter(taught.learned), tmp_path)
    told = {
        name: reader.get_field(name).contents() for name in ("general.type", "general.architecture", "adapter.type")
    }
    assert told == {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    expected = {}
    for layer, change in taught.changes().items():
        block, kind = layer.split(".")[2], layer.rpartition(".")[2]
        name = NAMES[kind]
        heads = {"q_proj": 4, "k_proj": 2}.get(kind)
        expected[f"blk.{block}.{name}.weight"] = turned(change, heads) if heads else change
    found = changes_in(reader)
    assert found.keys() == expected.keys()
    assert min(np.abs(change).max() for change in expected.values()) > 1e-3
    for name, change in expected.items():
        np.testing.assert_allclose(found[name], change, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_scale_is_told(llama, tmp_path):
    taught = Taught(llama, tmp_path, "lora", seed=randrange(1 << 24), rank=3, alpha=7.0)
    content = gguf_adapter(taught.learned)
    reader = read(content, tmp_path)
    assert reader.get_field("adapter.lora.alpha").contents() == 7.0
    assert {len(tensor.data) for tensor in reader.tensors if tensor.name.endswith(".lora_a")} == {3}
    expected = taught.changes()["model.layers.1.self_attn.v_proj"]
    np.testing.assert_allclose(changes_in(reader)["blk.1.attn_v.weight"], expected, rtol=1e-4, atol=1e-6)
    assert gguf_adapter(taught.learned) == content  # the same bytes for the same version


@pytest.mark.parametrize(
    ("method", "why"), [("ia3", "scales what goes into layers"), ("bitfit", "moves the model's biases")]
)
def test_what_does_not_fold_is_refused(method, why, tmp_path):
    folder = base("qwen2", tmp_path / "model", seed=1)  # whose queries have biases
    with pytest.raises(Refusal, match=f"--peft {method} {why}.*take the format peft, or merged"):
        gguf_adapter(Taught(folder, tmp_path, method).learned)


def test_a_model_that_nobody_checked_is_refused(tmp_path):
    learned = Taught(base("llama", tmp_path / "model", seed=1), tmp_path).learned
    learned.__dict__["model_config"] = {**learned.model_config, "model_type": "opt"}
    with pytest.raises(Refusal, match=f"made for {', '.join(ARCHITECTURES)}, and this job's model is a opt"):
        gguf_adapter(learned)


# --- by llama.cpp itself ---


def llama_logits(model, adapter, ids) -> np.ndarray:
    llama_cpp = pytest.importorskip(
        "llama_cpp",
        reason="llama-cpp-python is not built here: pip install llama-cpp-python takes minutes of a compiler",
    )
    lora = {} if adapter is None else {"lora_path": str(adapter)}
    told = llama_cpp.Llama(
        str(model), n_ctx=64, logits_all=True, verbose=False, n_threads=1, n_batch=64, type_k=0, type_v=0, **lora
    )
    try:
        told.eval(ids)
        return np.array(told.scores[: len(ids)])
    finally:
        told.close()


@pytest.mark.parametrize(
    ("kind", "method"), [*((kind, "lora") for kind in CONFIGS), *(("llama", m) for m in METHODS[1:])]
)
def test_llama_cpp_computes_what_peft_does(kind, method, tmp_path):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not built here: its compiler takes minutes")
    seed = randrange(1 << 24)
    folder = base(kind, tmp_path / "model", seed)
    file = whole(folder, tmp_path / "base.gguf")
    taught = Taught(folder, tmp_path, method, seed)
    adapter = tmp_path / "adapter.gguf"
    adapter.write_bytes(gguf_adapter(taught.learned))
    ids = np.random.default_rng(seed).integers(3, 60, 24).tolist()
    with taught.model.disable_adapter():
        plain = taught.logits(ids)
    np.testing.assert_allclose(llama_logits(file, None, ids), plain, atol=2e-2)
    expected = taught.logits(ids)
    assert np.abs(expected - plain).max() > 0.1
    np.testing.assert_allclose(llama_logits(file, adapter, ids), expected, atol=2e-2)
