"""A start from the mean over tokens: what the first token then says, and what PEFT loads of it."""

import pytest
import torch
from peft import PeftModel
from transformers import BertForSequenceClassification

from edge_client.bundle.adapters import folded
from edge_client.commands.options.adapter import AdapterOptions
from export.adapt import heads
from export.adapt.adapter import check_adapter
from export.adapt.heads import StandardizedLinear
from export.adapt.wrapping import adapt
from export.errors import ExportError
from export.model.loading import load
from export.model.samples import random_texts
from export.tasks.registry import MODEL_TASKS
from export.write import pack
from tests.export.models import tiny

LABELS = "a", "b", "c"
OPTIONS = AdapterOptions(rank=8, alpha=16, last_blocks=0, from_mean=True)


def opened(folder):
    return load(str(folder), MODEL_TASKS["seq-cls"], LABELS, seed=5)


def means_and_pooled(base, wrapped, loaded):
    """Build texts that nothing was learned by, single ones and pairs in turns."""
    means, pooled = [], []
    for number, batch in enumerate(random_texts(loaded, 256, 16, seed=99)):
        if number % 2:
            batch["token_type_ids"].zero_()
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        mask = inputs["attention_mask"][..., None]
        with torch.no_grad():
            means.append((base(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1))
            pooled.append(wrapped(**inputs).pooler_output)
    return torch.cat(means).double(), torch.cat(pooled).double()


def error(means, pooled):
    """Measure the distance of the pooled features from the means, centred and scaled, by their square."""
    moved = means - means.mean(0)
    wanted = torch.tanh(0.3 * moved / moved.std())
    return float((pooled - wanted).square().sum() / wanted.square().sum())


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing:FutureWarning")  # between transformers and peft
def test_the_first_token_says_what_the_mean_says(model_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "_FEWEST", 1)  # as if this model knew more words: without a mean it would be whitened
    plain, told = opened(model_folder), list[str]()
    before = error(*means_and_pooled(plain.model.bert, plain.model.bert, plain))
    loaded = opened(model_folder)
    adapted = adapt(loaded, OPTIONS, 5, tell=told.append)
    after = error(*means_and_pooled(plain.model.bert, adapted.model.base_model.model.bert, plain))
    assert before > 1
    assert after < 0.9, "saying nothing is off by 1"
    assert told[-1].endswith(f"{len(told)} of {len(told)}")
    assert not any(isinstance(one, StandardizedLinear) for one in adapted.model.modules()), "nothing is whitened"
    assert not any("pooler" in slot.name for slot in adapted.slots.values()), "it is learned once, and then kept"
    values = folded({name: tensor.numpy() for name, tensor in adapted.initial.items()})
    pack.add_adapter(tmp_path / "adapter", adapted.config, {name: torch.from_numpy(v) for name, v in values.items()})
    base = BertForSequenceClassification.from_pretrained(model_folder, num_labels=len(LABELS)).eval()
    tokens = loaded.tokenizer("the ice is on the lake", return_tensors="pt")
    with torch.no_grad():
        expected = adapted.model(**tokens).logits
        found = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()(**tokens).logits
    torch.testing.assert_close(found, expected)


def test_what_has_no_pooler_or_no_tokenizer_is_refused():
    for architecture in ("roberta", "bert"):
        with pytest.raises(ExportError, match="tokenizer and a pooler"):
            adapt(tiny(architecture, "seq-cls"), OPTIONS)


def test_other_adapters_are_refused():
    with pytest.raises(ExportError, match="--from-mean trains LoRA's layers, got --peft ia3"):
        check_adapter(AdapterOptions(method="ia3", from_mean=True))
