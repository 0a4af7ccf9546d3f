"""A device that took part in a round of a language model's job writes by what it has."""

import json

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from edge_client.bundle.folder import Bundle
from edge_client.client.predictions import find_job, kept_weights
from edge_client.commands import cli
from edge_client.errors import SpryError
from tests.edge_client.conftest import TEXTS

ROWS = [{"text": text} for text in TEXTS]
PROMPT = "the ice is"


@pytest.fixture(scope="module")
def speaking(exporting, tmp_path_factory):
    """A Llama of two blocks that writes by bytes, and its bundle."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<end>"]
    )
    backend.train_from_iterator(TEXTS, trainer)
    config = LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        vocab_size=backend.get_vocab_size(), max_position_embeddings=64, initializer_range=0.3, eos_token_id=0,
        bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("speaking")
    torch.manual_seed(5)
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", pad_token="<end>").save_pretrained(
        folder / "model"
    )
    return exporting(folder / "bundle", source=str(folder / "model"), task="causal-lm", batches=(4,), generate=40)


@pytest.fixture
def taught(fleet, speaking):
    """A device behind one round with a rate that moves what it says."""
    fleet.job(fleet.upload(speaking), rounds=1, training={"learning_rate": 0.3})
    client = fleet.client(ROWS)
    assert client.run(rounds=1).rounds == 1
    return client


def of_peft(speaking, weights, count: int) -> str:
    """What transformers and PEFT go on with, from the same weights."""
    from peft import PeftModel, set_peft_model_state_dict

    base = speaking.parent / "model"
    model = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(base).eval(), str(speaking / "adapter")).eval()
    set_peft_model_state_dict(model, {name: torch.from_numpy(value) for name, value in weights.items()})
    tokenizer = Bundle.open(speaking).tokenizer()
    ids = torch.tensor([tokenizer.encode(PROMPT).ids])
    found = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return tokenizer.decode(found[0, ids.shape[1] :].tolist())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers about itself
def test_a_device_writes_by_the_weights_that_it_trained(fleet, taught, speaking, capsys):
    weights = kept_weights(*find_job(taught.store, None), Bundle.open(speaking), personal=True)
    said = list(taught.generate(PROMPT, personal=True, max_tokens=20))
    assert len(said) > 1
    assert "".join(said) == of_peft(speaking, weights, 20)

    drawn = [
        "".join(taught.generate(PROMPT, max_tokens=16, temperature=1.5, top_k=50, top_p=0.95, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    whole = "".join(said)
    word = whole[3:6]
    assert "".join(taught.generate(PROMPT, personal=True, max_tokens=20, stop=[word])) == whole[: whole.index(word)]

    home = ["--home", str(fleet.folder / "home")]
    assert cli.run(["generate", PROMPT, "--personal", "--max-tokens", "20", *home]) == 0
    assert capsys.readouterr().out == whole + "\n"
    options = ["--temperature", "1.5", "--top-k", "50", "--top-p", "0.95", "--seed", "1", "--max-tokens", "16"]
    assert cli.run(["generate", PROMPT, *options, "--json", *home]) == 0
    assert json.loads(capsys.readouterr().out) == {"prompt": PROMPT, "text": drawn[0]}

    for arguments, message in (
        (["it " * 60], "the bundle holds 40 of prompt and answer: shorten it, or export with a larger --generate"),
        ([PROMPT, "--max-tokens", "100"], "ask for fewer"),
        ([PROMPT, "--max-tokens", "0"], "max_tokens must be 1 or more, got 0"),
        ([PROMPT, "--stop", ""], "a stop word must have a character at least"),
        ([""], "the prompt has no tokens: ''"),
    ):
        assert cli.run(["generate", *arguments, *home]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


def test_a_bundle_that_does_not_generate_says_so(fleet, trainable):
    fleet.job(fleet.upload(trainable), rounds=1)
    client = fleet.client()
    client.run(rounds=1)
    with pytest.raises(SpryError, match="the bundle of topics has no programs that generate text: export it with"):
        client.generate("the ice")
