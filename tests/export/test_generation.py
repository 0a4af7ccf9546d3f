"""Programs that generate: the tokens that transformers' own `generate` gives, from the same weights."""

import hashlib
from collections import Counter
from functools import cache

import numpy as np
import onnx
import pytest
import torch
import transformers
from peft import PeftModel, set_peft_model_state_dict

from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import DECODE, HEAD, PREFILL
from edge_client.commands import cli
from edge_client.errors import SpryError
from edge_client.generation.decoder import Decoder
from edge_client.generation.generator import GenerationConfig, Generator
from edge_client.runtimes import trials
from edge_client.runtimes.runtime import open_runtime
from export.errors import ExportError
from tests.export.models import CONFIGS

LENGTH = 48
PROMPTS = (1, 5, 32, 40)
"""One token, a part of a pass of `prefill`, one, and more."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    @cache
    def save(architecture: str, **changes):
        config_class, options = CONFIGS[architecture]
        tokens = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
        torch.manual_seed(0)
        config = config_class(**options, **tokens, initializer_range=0.2)
        config.update(changes)
        folder = tmp_path_factory.mktemp("models") / architecture
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="module")
def exported(exporting, saved):
    """A model and its bundle, once for all tests that ask for the same."""

    @cache
    def made(architecture: str, options: tuple):
        return saved(architecture), exporting(source=str(saved(architecture)), task="causal-lm", **dict(options))

    def export(architecture: str, **options):
        # A processor is named, as an export else asks the clock which bytes are faster.
        usual = {"generate": LENGTH, "cuts": None, "precision": "none", "processor": "avx2", "runtimes": ("onnx",)}
        options = usual | options
        return made(architecture, tuple(sorted(options.items())))

    return export


def moved(bundle: Bundle, seed: int) -> dict[str, np.ndarray]:
    """Weights of the adapter that are not where they begin."""
    random = np.random.default_rng(seed)
    values = bundle.initial_adapter()
    return {
        name: (values[name] + 0.2 * random.standard_normal(values[name].shape)).astype(np.float32)
        for name in sorted(values)
    }


def of_transformers(base, bundle: Bundle, weights) -> PeftModel:
    model = transformers.AutoModelForCausalLM.from_pretrained(base).eval()
    adapted = PeftModel.from_pretrained(model, str(bundle.folder / "adapter")).eval()
    set_peft_model_state_dict(adapted, {name: torch.from_numpy(value) for name, value in weights.items()})
    return adapted


def check_tokens(base, folder, runtime: str, seed: int) -> None:
    bundle = Bundle.open(folder)
    weights = moved(bundle, seed)
    model = of_transformers(base, bundle, weights)
    with open_runtime(runtime, folder, threads=1) as opened:
        decoder = Decoder(bundle.manifest, opened, runtime, weights)
        generator = Generator(decoder, None, ends=())  # tokens need no tokenizer
        for prompt in PROMPTS:
            ids = torch.randint(3, 100, (1, prompt), generator=torch.Generator().manual_seed(seed + prompt))
            count = min(LENGTH - prompt, 20)
            expected = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False,
                eos_token_id=None, pad_token_id=1,
            )[0, prompt:]  # fmt: skip
            assert list(generator.tokens(ids[0].tolist(), GenerationConfig(max_tokens=count))) == expected.tolist()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers about itself
@pytest.mark.parametrize(("architecture", "runtime"), [
    ("llama", "onnx"), ("gpt2", "onnx"), ("gemma3", "onnx"), ("opt", "onnx"),
    ("gemma3", "executorch"),
    ("qwen3", "torchscript"),
])  # fmt: skip
def test_greedy_tokens_are_those_of_transformers(exported, architecture, runtime):
    more = {"verify": "none", "cuts": 1} if architecture != "llama" else {}  # that one is there for other tests too
    base, folder = exported(architecture, runtimes=(runtime,), **more)
    check_tokens(base, folder, runtime, seed=len(architecture) * 7)


@pytest.fixture(scope="module")
def llama(exported):
    return exported("llama")


@pytest.mark.parametrize("precision", ["none", "int8", "int4"])
def test_weights_are_stored_once_for_training_and_generation(exported, precision, capsys):
    _, folder = exported("llama", precision=precision)
    _, without = exported("llama", precision=precision, generate=0, verify="none")
    weights = [
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(one.rglob("*.bin"))}
        for one in (folder, without)
    ]
    assert weights[0] == weights[1]
    manifest = Bundle.open(folder).manifest
    assert {check.what.partition(",")[0] for check in manifest.verification} > {"generation"}
    assert all(check.passed for check in manifest.verification)
    assert cli.run(["inspect", str(folder), "--no-verify"]) == 0
    assert f"{LENGTH} tokens of prompt and answer" in capsys.readouterr().out


def test_a_device_tries_what_writes_too(llama):
    folder = llama[1]
    spec = Bundle.open(folder).manifest.runtimes["onnx"]
    tried = {trial.program for trial in spec.trials}
    assert {(one.segment, one.kind) for one in spec.generation if one.name in tried} == {
        (HEAD, PREFILL),
        (HEAD, DECODE),
    }
    with open_runtime("onnx", folder, threads=1) as opened:
        trials.check(opened, "onnx", spec)


@pytest.mark.parametrize("precision", ["none", "int8"])
def test_a_token_is_one_call_of_few_operators(exported, precision):
    """One program of all blocks, whose small operators are ONNX Runtime's own, and caches that lie where they were."""
    bundle = Bundle.open(exported("llama", precision=precision)[1])
    assert sorted(program.kind for program in bundle.manifest.runtimes["onnx"].generation) == [DECODE, PREFILL]
    assert not list(bundle.folder.rglob(f"*.{DECODE}_*"))
    decode = next(one for one in bundle.manifest.runtimes["onnx"].generation if one.kind == DECODE)
    nodes = onnx.load(bundle.folder / decode.file, load_external_data=False).graph.node
    kinds = Counter(node.op_type for node in nodes)
    blocks = bundle.manifest.model.blocks
    assert kinds["GroupQueryAttention"] == blocks
    assert kinds["RotaryEmbedding"] == 2 * blocks
    assert kinds["SimplifiedLayerNormalization"] == 2 * blocks + 1
    assert kinds.keys().isdisjoint({"Sqrt", "Neg", "Sigmoid", "Softmax"})
    with open_runtime("onnx", bundle.folder, threads=1) as opened:
        decoder = Decoder(bundle.manifest, opened, "onnx", moved(bundle, 3))
        before = {name: id(cache) for name, cache in decoder._cache.items()}
        decoder.read([5, 6])
        decoder.read([7])
        for name, cache in decoder._cache.items():
            assert id(cache) == before[name]
            assert cache[:, :, :3].any(axis=(0, 1, 3)).all()
            assert not cache[:, :, 2 + bundle.manifest.generation.chunk :].any()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers about itself
def test_a_head_that_the_operator_does_not_know_attends_by_products(exporting, saved):
    base = saved("llama", head_dim=12)
    options = {"task": "causal-lm", "generate": LENGTH, "precision": "none", "runtimes": ("onnx",), "cuts": 1}
    check_tokens(base, exporting(source=str(base), verify="none", **options), "onnx", seed=5)


def test_a_bundle_without_generation_is_as_it_was(exported):
    manifest = Bundle.open(exported("llama", generate=0, verify="none")[1]).manifest
    assert manifest.generation is None
    assert all(not spec.generation for spec in manifest.runtimes.values())
    with pytest.raises(SpryError, match="no programs that generate text with onnx: export it with --task causal-lm"):
        Decoder(manifest, None, "onnx", {})


def test_what_two_prompts_begin_with_is_read_once(llama):
    """A chat grows at its end; what was read of it stays in the cache."""
    bundle = Bundle.open(llama[1])
    with open_runtime("onnx", bundle.folder, threads=1) as opened:
        made = [Decoder(bundle.manifest, opened, "onnx", moved(bundle, 3)) for _ in range(2)]
        used, fresh = (Generator(decoder, None, ends=()) for decoder in made)
        first, config = list(range(5, 15)), GenerationConfig(max_tokens=6)
        said = list(used.tokens(first, config))
        longer = [*first, *said, 7, 8, 9]
        read: list[int] = []
        real = used.decoder.read
        used.decoder.read = lambda tokens: read.extend(tokens) or real(tokens)
        again = list(used.tokens(longer, config))
        assert read[:4] == [said[-1], 7, 8, 9]
        assert again == list(fresh.tokens(longer, config))
        other = [*first[:4], 50, 51]
        assert list(used.tokens(other, config)) == list(fresh.tokens(other, config))


def test_the_cache_holds_what_it_says_and_no_more(llama):
    bundle = Bundle.open(llama[1])
    with open_runtime("onnx", bundle.folder, threads=1) as opened:
        decoder = Decoder(bundle.manifest, opened, "onnx", moved(bundle, 3))
        generator = Generator(decoder, None, ends=())
        assert len(list(generator.tokens(list(range(3, 43)), GenerationConfig()))) == LENGTH + 1 - 40
        for prompt, config, message in (
            (
                LENGTH + 5,
                GenerationConfig(),
                f"the prompt has 53 tokens, the bundle holds {LENGTH} of prompt and answer: shorten",
            ),
            (
                40,
                GenerationConfig(max_tokens=30),
                "the prompt has 40 tokens and 30 more are asked for, the bundle holds 48: ask for",
            ),
        ):
            with pytest.raises(SpryError, match=message):
                generator.text([5] * prompt, config)
        with pytest.raises(SpryError, match=f"the cache holds {LENGTH} tokens and has 48, got 1 more"):
            decoder.read([5])
        decoder.clear()
        with pytest.raises(SpryError, match="expected tokens to read, got none"):
            decoder.read([])
        with pytest.raises(SpryError, match=r"the weights given lack .*lora_A"):
            Decoder(bundle.manifest, opened, "onnx", {})


def test_text_ends_where_the_model_ends_it(llama):
    bundle = Bundle.open(llama[1])
    with open_runtime("onnx", bundle.folder, threads=1) as opened:
        decoder = Decoder(bundle.manifest, opened, "onnx", moved(bundle, 3))
        free = list(Generator(decoder, None, ends=()).tokens([5, 6, 7], GenerationConfig(max_tokens=12)))
        last = free.index(free[5])
        assert list(Generator(decoder, None, ends=(free[5],)).tokens([5, 6, 7], GenerationConfig())) == free[:last]
    assert bundle.manifest.generation.ends == (2,)


def test_a_model_that_sees_what_follows_is_refused(exporting, saved):
    base = saved("bert", is_decoder=False)
    with pytest.raises(ExportError, match=r"verification failed: .*generation"):
        exporting(source=str(base), task="causal-lm", generate=LENGTH)


def test_a_model_without_attention_of_ours_is_refused(exporting, tmp_path):
    config = transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=100)
    transformers.BloomForCausalLM(config).save_pretrained(tmp_path / "bloom")
    with pytest.raises(ExportError, match=r"a key-value cache needs 2 layers of attention .* this model has 0"):
        exporting(source=str(tmp_path / "bloom"), task="causal-lm", generate=LENGTH, verify="none")


def test_more_than_the_model_has_positions_for_is_refused(exporting, saved):
    with pytest.raises(ExportError, match="the model has 64 positions, got --generate 65; choose a shorter length"):
        exporting(source=str(saved("gpt2")), task="causal-lm", generate=65)
