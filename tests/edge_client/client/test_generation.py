"""A device that took part in a round of a language model's job writes by what it has."""

import hashlib
import io
import json

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from edge_client.bundle.folder import Bundle
from edge_client.client.generation import Conversation, Writer
from edge_client.client.predictions import find_job, kept_weights
from edge_client.commands import cli
from edge_client.data.templates import Template
from edge_client.errors import SpryError
from edge_client.format import shown_lines
from edge_client.generation.answers import rouge_l
from edge_client.generation.generator import GenerationConfig
from edge_client.tasks.questions import exact_match
from tests.edge_client.conftest import ADMIN, TEXTS
from tests.speaking import exported

ROWS = [{"text": text} for text in TEXTS]
PROMPT = "the ice is"


@pytest.fixture(scope="module")
def speaking(exporting, tmp_path_factory):
    return exported(exporting, tmp_path_factory.mktemp("speaking"), TEXTS)


@pytest.fixture
def taught(fleet, speaking):
    """A device behind one round with a rate that moves what it says."""
    fleet.job(fleet.upload(speaking), rounds=1, training={"learning_rate": 0.3})
    client = fleet.client(ROWS)
    assert client.run(rounds=1).rounds == 1
    return client


def test_conversations_that_nobody_can_read_take_no_place(fleet, speaking):
    """And no bundle is fetched for them."""
    fleet.job(fleet.upload(speaking), rounds=1)
    done = fleet.client([{"conversations": [{"from": "stranger", "value": "the ice"}]}]).run(once=True)
    assert (done.rounds, done.failures) == (0, 1)
    (told,) = (event.message for event in fleet.told("warning") if "do not fit" in event.message)
    assert "1 of 1 rows: message 1 is from 'stranger'" in told
    assert "labels" not in told
    assert not list((fleet.folder / "home").rglob("manifest.json"))


def of_peft(speaking, weights, count: int, prompt: str = PROMPT) -> str:
    """Return what transformers and PEFT go on with, from the same weights."""
    from peft import PeftModel, set_peft_model_state_dict

    base = speaking.parent / "model"
    model = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(base).eval(), str(speaking / "adapter")).eval()
    set_peft_model_state_dict(model, {name: torch.from_numpy(value) for name, value in weights.items()})
    tokenizer = Bundle.open(speaking).tokenizer()
    ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False).ids])
    found = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return tokenizer.decode(found[0, ids.shape[1] :].tolist())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers about itself
def test_a_device_writes_by_the_weights_that_it_trained(fleet, taught, speaking, capsys):
    weights = kept_weights(*find_job(taught.store, None), Bundle.open(speaking), personal=True)
    said = list(taught.generate(PROMPT, personal=True, max_tokens=20))
    assert "".join(said) == of_peft(speaking, weights, 20)

    drawn = [
        list(taught.generate(PROMPT, max_tokens=16, temperature=1.5, top_k=50, top_p=0.95, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert max(map(len, drawn)) > 1  # piece by piece: bytes that are half a character wait for the other half
    whole = "".join(said)
    word = whole[3:6]
    assert "".join(taught.generate(PROMPT, personal=True, max_tokens=20, stop=[word])) == whole[: whole.index(word)]

    home = ["--home", str(fleet.folder / "home")]
    assert cli.run(["generate", PROMPT, "--personal", "--max-tokens", "20", *home]) == 0
    assert capsys.readouterr().out == shown_lines(whole) + "\n"
    options = ["--temperature", "1.5", "--top-k", "50", "--top-p", "0.95", "--seed", "1", "--max-tokens", "16"]
    assert cli.run(["generate", PROMPT, *options, "--json", *home]) == 0
    assert json.loads(capsys.readouterr().out) == {"prompt": PROMPT, "text": "".join(drawn[0])}

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


# --- conversations ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers about itself
def test_a_conversation_is_what_the_template_makes_of_it(fleet, taught, speaking, capsys, monkeypatch):
    weights = kept_weights(*find_job(taught.store, None), Bundle.open(speaking), personal=True)
    first = of_peft(speaking, weights, 5, "be;it is.")
    second = of_peft(speaking, weights, 5, f"be;it is.{first};the ice.")
    monkeypatch.setattr("sys.stdin", io.StringIO("it is\n\n  the ice \n"))
    home = ["--home", str(fleet.folder / "home")]
    assert cli.run(["chat", "--personal", "--system", "be", "--max-tokens", "5", *home]) == 0
    said = capsys.readouterr()
    assert said.out == shown_lines(f"{first}\n{second}\n")
    assert said.err == ""


def test_a_long_conversation_forgets_what_was_first(taught):
    config = GenerationConfig(max_tokens=6)
    with Writer(taught.store) as writer:
        talk = Conversation(writer, "be")
        for _ in range(6):
            assert "".join(talk.answer("it is a train", config))
            assert len(writer.tokens(talk.messages[:-1])) + 6 <= writer.length
        assert talk.forgotten > 0
        assert talk.forgotten % 2 == 0
        assert talk.messages[0] == {"role": "system", "content": "be"}
        before = list(talk.messages)
        with pytest.raises(SpryError, match="the bundle holds 40 of prompt and answer"):
            talk.answer("it " * 60, config)
        assert talk.messages == before


def test_an_answer_that_is_cut_short_is_kept_as_far_as_it_came(taught):
    with Writer(taught.store) as writer:
        talk = Conversation(writer)
        pieces = talk.answer("it is", GenerationConfig(max_tokens=8))
        began = next(pieces)
        pieces.close()
        assert talk.messages[-1] == {"role": "assistant", "content": began}
        assert "".join(talk.answer("the ice", GenerationConfig(max_tokens=4)))


def test_a_model_without_a_template_does_not_converse(taught):
    with Writer(taught.store) as writer:
        writer.template = Template()
        with pytest.raises(SpryError, match="has no chat template: go on with a text by `spry generate`"):
            Conversation(writer)


# --- held-out answers, at the server ---


def held_out(fleet, rows) -> str:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    name = hashlib.sha256(content).hexdigest()
    fleet.call("PUT", f"/v1/held-out/{name}", content=content)
    return name


@pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers about itself
def test_the_server_scores_answers_that_are_written_in_full(fleet, speaking):
    """Half of the rows have what transformers writes as their known answer, and others are asked nothing."""
    weights = Bundle.open(speaking).initial_adapter()
    prompts = ["the ice is", "a train on", "the lake", "it is"]
    room = [40 - len(Bundle.open(speaking).tokenizer().encode(prompt).ids) for prompt in prompts]
    written = [of_peft(speaking, weights, count, prompt) for prompt, count in zip(prompts, room, strict=True)]
    rows = [
        {"prompt": prompt, "completion": answer if place % 2 else f"{answer} and more"}
        for place, (prompt, answer) in enumerate(zip(prompts, written, strict=True))
    ]
    name = held_out(fleet, [*rows, {"text": "no question"}])
    still = {"learning_rate": 1e-20}
    fleet.job(fleet.upload(speaking), rounds=1, training=still, held_out=name, evaluate_answers=4)
    fleet.client(ROWS).run(rounds=1)
    found = fleet.ended()["metrics"]
    known = [row["completion"] for row in rows]
    assert found["exact_match"] == np.mean(
        [exact_match(one, [right]) for one, right in zip(written, known, strict=True)]
    )
    assert found["rouge_l"] == pytest.approx(np.mean(list(map(rouge_l, written, known))), abs=1e-6)
    assert found["exact_match"] >= 0.5
    assert found["perplexity"] > 1


def test_answers_that_nobody_could_write_are_refused(fleet, speaking, bundle):
    rows = [{"text": "no question"}]
    body = {"name": "job", "bundle": fleet.upload(speaking), "settings": {"evaluate_answers": 2}}
    refused = fleet.http.post("/v1/jobs", json=body, headers=ADMIN)
    assert "evaluate_answers needs questions with known answers" in refused.json()["detail"]
    body["settings"] |= {"held_out": held_out(fleet, rows), "training": {"batch": 4, "length": 8}}
    refused = fleet.http.post("/v1/jobs", json=body, headers=ADMIN)
    assert "needs held-out rows that ask something" in refused.json()["detail"]
    body |= {"bundle": fleet.upload(bundle)}
    body["settings"]["held_out"] = held_out(fleet, [{"text": "the ice", "label": "no"}])
    refused = fleet.http.post("/v1/jobs", json=body, headers=ADMIN)
    assert "evaluate_answers needs programs that generate text" in refused.json()["detail"]
