"""A task layer behind standardized features: the same function, and plain weights in the adapter it ends in."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import BertForSequenceClassification

from edge_client.bundle.adapters import SCALE, folded, unfolded
from export.adapt.heads import standardize_head, whiten_head
from export.adapt.wrapping import adapt, head_modules
from export.check.reference import Reference
from export.errors import ExportError
from export.model.loading import load
from export.model.samples import random_texts, sample_inputs
from export.tasks.registry import MODEL_TASKS
from export.write import pack
from tests.adapters import everywhere
from tests.conftest import LABELS
from tests.export.models import projections, tiny

HEADS = {
    ("bert", "seq-cls"): "classifier",
    ("roberta", "seq-cls"): "classifier.out_proj",  # behind a layer that is trained too
    ("gpt2", "seq-cls"): "score",  # without a bias
    ("bert", "qa"): "qa_outputs",  # of each token
}


@pytest.fixture(params=HEADS, ids="-".join)
def case(request):
    """A model, its task layer's name, and examples."""
    loaded = tiny(*request.param)
    return loaded, HEADS[request.param], [sample_inputs(loaded, 8, 12, seed) for seed in range(3)]


def entering(loaded, name, batches):
    """Return the layer's input for all tokens but padding, from the weight's gradient."""
    layer = loaded.model.get_submodule(name)
    seen = []
    handle = layer.register_forward_pre_hook(lambda _module, given: seen.append(given[0]))
    for batch in batches:
        loaded.model(**{key: value for key, value in batch.items() if key != "labels"})
    handle.remove()
    real = [states[batch["attention_mask"].bool()] if states.ndim > 2 else states
            for states, batch in zip(seen, batches, strict=True)]  # fmt: skip
    features = torch.cat(real)
    weight = layer.weight.detach().clone().requires_grad_()
    multiplied = []
    for row in features:
        result = torch.func.functional_call(layer, {"weight": weight}, (row,))
        multiplied.append(torch.autograd.grad(result[0], weight)[0][0])
    return torch.stack(multiplied)


def standardized(loaded, batches):
    standardize_head(loaded, head_modules(loaded.model, loaded.task), batches)


def test_features_come_centred_and_of_even_size(case):
    loaded, name, batches = case
    standardized(loaded, batches)
    features = entering(loaded, name, batches)
    centred = getattr(loaded.model.get_submodule(name), "bias", None) is not None
    assert (features.mean(0).abs().max() < 1e-4) == centred
    torch.testing.assert_close(features.square().mean(0).sqrt(), torch.ones(features.shape[1]), atol=1e-3, rtol=0)


def test_at_first_nothing_changes(case):
    loaded, _, batches = case
    inputs = {key: value for key, value in batches[0].items() if key != "labels"}
    before = loaded.model(**inputs)[0]
    standardized(loaded, batches)
    torch.testing.assert_close(loaded.model(**inputs)[0], before, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("architecture", "task"), HEADS, ids="-".join)
def test_the_fold_is_a_plain_task_layer(architecture, task):
    where = projections(architecture, task)
    options = everywhere(rank=2)
    loaded, plain = tiny(architecture, task), tiny(architecture, task)
    standardized(loaded, [sample_inputs(loaded, 8, 12, seed=3)])
    adapted = adapt(loaded, options, projections=where)
    assert any(name.endswith(f".{SCALE}") for name in adapted.initial)
    trained = {
        slot.name: adapted.initial[slot.name] + torch.randn(adapted.initial[slot.name].shape)
        for slot in adapted.slots.values()
    }
    whole = folded({name: value.numpy() for name, value in (adapted.initial | trained).items()})
    expected = adapt(plain, options, projections=where)
    assert set(whole) == set(expected.initial)
    inputs = sample_inputs(plain, 4, 12, seed=5)
    torch.testing.assert_close(
        Reference(expected, plain.task).losses(
            inputs, {slot.name: torch.from_numpy(whole[slot.name]) for slot in expected.slots.values()}
        ),
        Reference(adapted, loaded.task).losses(inputs, trained),
        atol=1e-4,
        rtol=1e-4,
    )


def test_a_feature_that_hardly_moves_is_not_blown_up():
    loaded = tiny("bert", "seq-cls")
    pooler = loaded.model.bert.pooler.dense
    with torch.no_grad():
        pooler.weight[0] = 0  # it is tanh(bias) for all examples
    standardized(loaded, [sample_inputs(loaded, 8, 12, seed=3)])
    scale = loaded.model.classifier.scale
    assert scale[0] == scale.max() < 11 * scale[1:].median()
    assert loaded.model.classifier.centre[0] == pytest.approx(float(torch.tanh(pooler.bias[0])), abs=1e-6)


def test_examples_that_are_all_the_same_are_refused():
    loaded = tiny("bert", "seq-cls")
    batch = {name: value[:1].expand(4, *value.shape[1:]) for name, value in sample_inputs(loaded, 4, 12, 0).items()}
    with pytest.raises(ExportError, match="the task layer classifier gets the same features for all of the examples"):
        standardized(loaded, [batch])
    with pytest.raises(ExportError, match="no linear layer whose features could be centred"):
        standardize_head(loaded, ["pooler"], [batch])


# --- without examples -------------------------------------------------------------------------------------------------

WORDS = [a + b for a in "bdfgklmnprstvz" for b in (x + y for x in "aeiou" for y in "bdfgklmnprstvz")]


@pytest.fixture(params=["bert", "gpt2"])  # one has a bias
def wordy(request):
    """A model that classifies, a tokenizer of 980 words and 100 numbers, and its task layer's name."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["[PAD]", "[UNK]", *WORDS, *map(str, range(100))]
    backend = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")
    loaded = tiny(request.param, "seq-cls")
    loaded.model.resize_token_embeddings(len(pieces), mean_resizing=False)
    loaded.model.config.pad_token_id = 0
    return replace(loaded, tokenizer=tokenizer, pad_token_id=0), HEADS[request.param, "seq-cls"]


def whitened(loaded, seed=0):
    whiten_head(loaded, head_modules(loaded.model, loaded.task), seed)


def test_words_vary_alike_in_all_directions_but_those_of_next_to_no_variance(wordy):
    loaded, name = wordy
    plain = loaded.model.get_submodule(name)
    texts = random_texts(loaded, 512, 16, seed=0)
    before = entering(loaded, name, texts).double()
    whitened(loaded)
    after = entering(loaded, name, texts).double()
    if plain.bias is None:  # nothing could take up the mean
        values, found = (torch.linalg.eigvalsh(rows.T @ rows / 512) for rows in (before, after))
    else:
        values, found = (torch.linalg.eigvalsh(torch.cov(rows.T, correction=0)) for rows in (before, after))
        assert after.mean(0).abs().max() < 1e-3
    eased = values / (values + 0.3 * values.mean())
    torch.testing.assert_close(found / found.sum(), eased / eased.sum(), atol=1e-4, rtol=1e-3)
    assert float(after.square().sum(1).mean() / before.square().sum(1).mean()) == pytest.approx(4, rel=1e-3)


def test_a_whitened_layer_gives_what_it_gave_and_folds_to_what_it_was(wordy):
    loaded, name = wordy
    plain = loaded.model.get_submodule(name)
    inputs = {key: value for key, value in random_texts(loaded, 4, 16, seed=5)[0].items() if key != "labels"}
    before = loaded.model(**inputs)[0]
    whitened(loaded)
    torch.testing.assert_close(loaded.model(**inputs)[0], before, atol=1e-4, rtol=1e-3)
    layer = loaded.model.get_submodule(name)
    found = folded({f"{name}.{key}": value.numpy() for key, value in layer.state_dict().items()})
    assert found.keys() == {f"{name}.{key}" for key in plain.state_dict()}
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(torch.from_numpy(found[f"{name}.{key}"]), value, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("shape", [(5,), (5, 5)])
@pytest.mark.parametrize("biased", [True, False])
def test_a_folded_layer_comes_apart_again(shape, biased):
    rng = np.random.default_rng()
    scale = rng.uniform(0.5, 2, shape).astype(np.float32)
    scale = scale @ scale.T + 5 * np.eye(5, dtype=np.float32) if scale.ndim > 1 else scale
    trained = {"head.weight": rng.normal(size=(3, 5)).astype(np.float32), "other": np.ones(2, np.float32)}
    trained |= {"head.bias": rng.normal(size=3).astype(np.float32)} if biased else {}
    fixed = {"head.centre": rng.normal(size=5).astype(np.float32), "head.scale": scale}
    again = unfolded(folded(trained | fixed), dict.fromkeys(trained, np.zeros(1)) | fixed)
    assert again.keys() == (trained | fixed).keys()
    for name, value in (trained | fixed).items():
        np.testing.assert_allclose(again[name], value, rtol=1e-4, atol=1e-5)


def test_the_same_seed_draws_the_same_words(wordy):
    loaded, _ = wordy
    one, again, other = (random_texts(loaded, 40, 16, seed) for seed in (3, 3, 4))
    assert all(torch.equal(a["input_ids"], b["input_ids"]) for a, b in zip(one, again, strict=True))
    assert any(a["input_ids"].tolist() != b["input_ids"].tolist() for a, b in zip(one, other, strict=True))


def test_a_layer_is_left_alone_where_words_are_few_or_the_task_has_no_classes(wordy):
    loaded, name = wordy
    known = loaded.tokenizer
    for other in (replace(loaded, tokenizer=None), replace(loaded, task=MODEL_TASKS["qa"])):
        whitened(other)
    assert len(known) > 1000
    known.backend_tokenizer.model = type(known.backend_tokenizer.model)({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]")
    whitened(loaded)
    assert type(loaded.model.get_submodule(name)) is torch.nn.Linear


# --- a pooler that the weights lack ----------------------------------------------------------------------------------


@pytest.fixture
def poolerless(model_folder, tmp_path):
    """A folder as encoders of sentences come: without the layer that classifying reads."""
    folder = shutil.copytree(model_folder, tmp_path / "encoder")
    weights = {name: value for name, value in load_file(folder / "model.safetensors").items() if "pooler" not in name}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("method", ["lora", "bitfit", "classifier"])
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing:FutureWarning")  # between transformers and peft
def test_an_adapter_brings_a_drawn_pooler_along(poolerless, tmp_path, method):
    loaded = load(str(poolerless), MODEL_TASKS["seq-cls"], LABELS, seed=5)
    adapted = adapt(loaded, everywhere(method), seed=5)
    assert not any("pooler" in slot.name for slot in adapted.slots.values())  # it is not trained
    pack.add_adapter(tmp_path / "adapter", adapted.config, folded_tensors(adapted.initial))
    base = BertForSequenceClassification.from_pretrained(poolerless, num_labels=len(LABELS)).eval()
    tokens = loaded.tokenizer("the ice is on the lake", return_tensors="pt")
    with torch.no_grad():
        alone, expected = base(**tokens).logits, adapted.model(**tokens).logits
        found = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()(**tokens).logits
    assert not torch.allclose(alone, expected, atol=1e-3)
    torch.testing.assert_close(found, expected)


def folded_tensors(initial):
    return {name: torch.from_numpy(value) for name, value in folded({n: t.numpy() for n, t in initial.items()}).items()}
