"""Loading: from folders and packages, and what makes none."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForSequenceClassification

from edge_client.errors import SpryError
from export.model.loading import load
from export.tasks.registry import MODEL_TASKS
from tests.conftest import LABELS, VOCABULARY
from tests.export.models import tiny

CLASSIFY = MODEL_TASKS["seq-cls"]


@pytest.fixture
def folder(model_folder, tmp_path):
    """A copy to damage."""
    return shutil.copytree(model_folder, tmp_path / "tiny-bert")


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder(model_folder):
    loaded = load(str(model_folder), CLASSIFY, LABELS)
    assert (loaded.name, loaded.layers, loaded.vocabulary) == ("tiny-bert", 2, len(VOCABULARY))
    assert loaded.labels == LABELS
    assert loaded.model.config.id2label == dict(enumerate(LABELS))
    assert loaded.inputs == ("input_ids", "attention_mask", "token_type_ids")
    assert loaded.parameters == sum(parameter.numel() for parameter in loaded.model.parameters())
    assert loaded.pad_token_id == 0
    assert loaded.tokenizer is not None
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    saved = load_file(model_folder / "model.safetensors")
    torch.testing.assert_close(loaded.model.bert.pooler.dense.weight, saved["pooler.dense.weight"])


def test_the_current_folder_has_a_name(model_folder, monkeypatch):
    monkeypatch.chdir(model_folder)
    assert load(".", CLASSIFY, LABELS).name == "tiny-bert"


def test_a_new_task_layer_starts_from_the_seed(model_folder):
    first, again, other = (load(str(model_folder), CLASSIFY, LABELS, seed=seed).model for seed in (3, 3, 4))
    torch.testing.assert_close(first.classifier.weight, again.classifier.weight)
    assert not torch.equal(first.classifier.weight, other.classifier.weight)
    torch.testing.assert_close(first.bert.pooler.dense.weight, other.bert.pooler.dense.weight)


def test_half_precision_is_computed_in_float32(folder):
    weights = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    loaded = load(str(folder), CLASSIFY, LABELS)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}


def test_a_package(tmp_path, model_folder, monkeypatch):
    package = tmp_path / "weights_of_somebody"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "config.json").write_text('{"colour": "red"}')
    shutil.copytree(model_folder, package / "data" / "model")
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = load("package:weights_of_somebody", CLASSIFY, LABELS)
    assert loaded.name == "package:weights_of_somebody"
    assert loaded.layers == 2


def test_a_shape_alone(folder):
    (folder / "model.safetensors").unlink()
    loaded = load(str(folder), CLASSIFY, LABELS, random_weights=True, seed=1)
    again = load(str(folder), CLASSIFY, LABELS, random_weights=True, seed=1)
    assert loaded.layers == 2
    torch.testing.assert_close(loaded.model.state_dict(), again.model.state_dict())


def test_other_labels_give_a_new_task_layer(folder):
    """A classifier trained for two classes is a fine start for three."""
    model = BertForSequenceClassification.from_pretrained(folder, num_labels=2)
    model.save_pretrained(folder)
    kept = load(str(folder), CLASSIFY, ("a", "b")).model
    torch.testing.assert_close(kept.classifier.weight, model.classifier.weight)
    loaded = load(str(folder), CLASSIFY, LABELS).model
    assert loaded.classifier.weight.shape == (3, 32)
    torch.testing.assert_close(loaded.bert.pooler.dense.weight, model.bert.pooler.dense.weight)


def test_a_checkpoint_without_pooler(folder):
    weights = {n: t for n, t in load_file(folder / "model.safetensors").items() if not n.startswith("pooler")}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert load(str(folder), CLASSIFY, LABELS).layers == 2


# --- tokenizers ------------------------------------------------------------------------------------------------------


def test_without_tokenizer_files_there_is_no_tokenizer(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    loaded = load(str(folder), CLASSIFY, LABELS)
    assert loaded.tokenizer is None
    assert loaded.pad_token_id == 0


def test_a_damaged_tokenizer_is_none(folder):
    (folder / "tokenizer.json").write_text("{")
    assert load(str(folder), CLASSIFY, LABELS).tokenizer is None


# --- what makes no model ---------------------------------------------------------------------------------------------


def refused(source, task=CLASSIFY, **options):
    with pytest.raises(SpryError) as caught:
        load(str(source), task, LABELS, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_folder_without_a_model(tmp_path):
    assert "holds no model: expected config.json and model.safetensors" in refused(tmp_path)


def test_a_file(model_folder):
    assert "config.json is no folder and no GGUF file; give a folder" in refused(model_folder / "config.json")


def test_no_such_folder(tmp_path):
    assert "absent is no folder" in refused(tmp_path / "absent")


def test_a_name_the_hub_cannot_give():
    text = refused("nobody/no-such-model")
    assert "cannot load a model from 'nobody/no-such-model'" in text
    assert "expected a folder with config.json, a .gguf, package:NAME, or a name on the hub" in text


@pytest.mark.parametrize(
    ("name", "reason"),
    [("no_such_package_at_all", "no such package is installed"), ("json", "it holds no config.json")],
)
def test_a_package_without_a_model(name, reason):
    assert f"the package {name} gives no model: {reason}" in refused(f"package:{name}")


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert "holds a config.json but no weights (model.safetensors); add them, or pass --random-weights" in refused(
        folder
    )


def test_truncated_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    assert "cannot load the model's weights from" in refused(folder)


def test_a_config_that_is_no_json(folder):
    (folder / "config.json").write_text("{")
    assert "not a valid JSON file" in refused(folder)


def test_an_unknown_architecture(folder):
    change_config(folder, model_type="perceptron-9000")
    assert "perceptron-9000" in refused(folder)


def test_weights_of_another_shape(folder):
    change_config(folder, intermediate_size=128)
    text = refused(folder)
    assert "have other shapes than config.json says: bert.encoder.layer.0.intermediate.dense.bias (64,) instead" in text
    assert "more; give a whole checkpoint of this model" in text


def test_weights_of_fewer_blocks(folder):
    change_config(folder, num_hidden_layers=3)
    assert "lack parts of the model: bert.encoder.layer.2." in refused(folder)


def test_a_language_model_without_its_output_layer(folder):
    """It stays frozen, so it must not be new."""
    change_config(folder, is_decoder=True)
    assert "lack parts of the model: cls.predictions" in refused(folder, MODEL_TASKS["causal-lm"])


def test_a_task_that_the_architecture_does_not_have(folder):
    change_config(folder, model_type="distilbert")
    text = refused(folder, MODEL_TASKS["causal-lm"])
    assert "transformers has no AutoModelForCausalLM for DistilBertConfig" in text
    assert "choose another --task" in text


# --- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "positions"),
    [("bert", 64), ("distilbert", 512), ("roberta", 62), ("gpt2", 64), ("opt", 64), ("llama", None), ("gemma3", None)],
)
def test_positions(architecture, positions):
    assert tiny(architecture, "seq-cls").positions == positions


@pytest.mark.parametrize("architecture", ["bert", "roberta", "gpt2", "opt"])
def test_the_longest_sequence_runs_and_a_longer_one_does_not(architecture):
    loaded = tiny(architecture, "seq-cls")
    ids = torch.full((1, loaded.positions), 5)
    loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids))
    longer = torch.full((1, loaded.positions + 1), 5)
    with pytest.raises((IndexError, RuntimeError)):
        loaded.model(input_ids=longer, attention_mask=torch.ones_like(longer))
