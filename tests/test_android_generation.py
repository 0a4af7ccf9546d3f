"""The Android library's texts beside Python's, by the same bundle: greedy and drawn, cut by stop words and ends."""

import hashlib
import json
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import FILE_NAME
from edge_client.client.generation import Conversation, Writer
from edge_client.generation.decoder import Decoder
from edge_client.generation.generator import GenerationConfig, Generator
from edge_client.generation.sampler import Sampling
from edge_client.runtimes.runtime import open_runtime
from edge_client.store.job import KeptWeights, KnownJob
from edge_client.store.jobs import DeviceStore
from tests import android
from tests.speaking import exported

TEXTS = ["the ice is on the lake", "it is a train", "größer als 3 €", "no ice, no train!", "氷 🚆"]


@pytest.fixture(scope="module")
def speaking(exporting, tmp_path_factory):
    return exported(exporting, tmp_path_factory.mktemp("speaking"), TEXTS)


def asked() -> list[dict]:
    """Prompts that share their beginning, and every way to choose a token."""
    drawn = random.Random()
    prompts = ["the ice", "the ice is", "the ice is on it", "größer", "氷", "no train", "the"]
    ways = [
        {},
        {"repetition_penalty": 1.3},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 20},
        {"temperature": 1.4, "top_p": 0.9},
        {"temperature": 1.1, "top_k": 60, "top_p": 0.8, "repetition_penalty": 0.8},
    ]
    cases = [{"prompt": prompt, "seed": drawn.randrange(2**62)} | way for prompt in prompts for way in ways]
    cases += [{"prompt": "the ice", "stop": [stop], "max_tokens": 20} for stop in ("e", "ic", "zz", " ")]
    return [*cases, {"prompt": "the ice", "pieces": 3}]


def written(generator: Generator, case: dict) -> str:
    names = "temperature", "top_k", "top_p", "repetition_penalty", "seed"
    sampling = Sampling(**{name: case[name] for name in names if name in case})
    return "".join(
        generator.text(case["prompt"], GenerationConfig(sampling, case.get("max_tokens"), tuple(case.get("stop", ()))))
    )


def test_the_same_text_as_python_writes(speaking, classes, tmp_path):
    bundle, cases, rng = Bundle.open(speaking), asked(), np.random.default_rng()
    weights = {
        name: value + 0.1 * rng.standard_normal(value.shape, np.float32)
        for name, value in bundle.initial_adapter().items()
    }
    save_file(weights, tmp_path / "weights.safetensors")
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    command = android.java(classes, "dev.spry.core.generation.GenerateMain", speaking, "onnx", tmp_path)
    done = subprocess.run(command, env=android.environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "texts.json").read_text(encoding="utf-8"))
    with open_runtime("onnx", bundle.folder, threads=1) as runtime:
        decoder = Decoder(bundle.manifest, runtime, "onnx", weights)
        generator = Generator(decoder, bundle.tokenizer(), bundle.manifest.generation.ends)
        expected = [written(generator, case) for case in cases]
    assert len(set(expected)) > 20
    for case, ours, theirs in zip(cases, found, expected, strict=True):
        if "pieces" in case:  # left early
            assert theirs.startswith(ours), case
            assert 3 <= len(ours) < len(theirs)
        else:
            assert ours == theirs, case


SERVER = "http://127.0.0.1:9"


@pytest.fixture
def home(speaking, tmp_path) -> Path:
    """Return the home of a device that took part in a job and has other weights than it began with."""
    rng, store = np.random.default_rng(), DeviceStore(tmp_path / "home", SERVER)
    name = hashlib.sha256((speaking / FILE_NAME).read_bytes()).hexdigest()
    shutil.copytree(speaking, store.bundle(name))
    initial = Bundle.open(speaking).initial_adapter()
    moved = {key: value + 0.1 * rng.standard_normal(value.shape, np.float32) for key, value in initial.items()}
    store.job("j").save_about(KnownJob("j", "talk", name, "onnx"))
    store.job("j").save_weights(name, KeptWeights(1, moved))
    return tmp_path / "home"


def chatted(classes: str, home: Path, said: list[str], *options: str) -> subprocess.CompletedProcess[str]:
    given = "--home", home, "--server", SERVER, "--chat", "|".join(said), *options
    command = android.java(classes, "dev.spry.core.JoinMain", *given)
    variables = android.environment()
    return subprocess.run(command, env=variables, capture_output=True, encoding="utf-8", timeout=300, check=False)


@pytest.mark.parametrize(
    ("options", "config", "system"),
    [
        ((), GenerationConfig(), ""),
        (("--max-tokens", "14", "--system", "on it"), GenerationConfig(max_tokens=14), "on it"),
        (("--temperature", "0.9", "--seed", "77"), GenerationConfig(Sampling(temperature=0.9, seed=77)), ""),
    ],
)
def test_the_same_conversation_as_python_has(home, classes, options, config, system):
    """With more turns than there is room for, so that the oldest are forgotten."""
    drawn = random.Random()
    said = [drawn.choice(["the ice", "no train", "is it on the lake", "größer", " 氷 "]) for _ in range(6)]
    done = chatted(classes, home, said, *options)
    assert done.returncode == 0, done.stderr
    found = android.said(done.stdout)
    with Writer(DeviceStore(home, SERVER), threads=1) as writer:
        conversation = Conversation(writer, system)
        for text, ours in zip(said, found, strict=True):
            assert ours == {"answer": "".join(conversation.answer(text, config)), "forgotten": conversation.forgotten}
    assert conversation.forgotten > 0


def test_a_model_whose_template_does_more_does_not_chat(home, classes):
    """And a message that has no room is refused in words."""
    long = chatted(classes, home, ["the ice", "the ice is on the lake " * 9])
    assert long.returncode == 2
    assert "the bundle holds 40 of prompt and answer" in long.stderr
    assert len(long.stdout.splitlines()) == 1  # the first was answered
    [manifest] = home.rglob(FILE_NAME)
    described = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(described | {"turns": None}))
    assert "error: the chat template does more than put words around messages" in chatted(classes, home, ["a"]).stderr


def test_what_cannot_be_written_is_refused_in_words(speaking, classes, tmp_path):
    save_file(Bundle.open(speaking).initial_adapter(), tmp_path / "weights.safetensors")
    command = android.java(classes, "dev.spry.core.generation.GenerateMain", speaking, "onnx", tmp_path)
    for case, why in [
        ({"prompt": ""}, "the prompt has no tokens"),
        ({"prompt": "the ice " * 40}, "the bundle holds 40 of prompt and answer: shorten it"),
        ({"prompt": "the", "max_tokens": 400}, "400 more are asked for, the bundle holds 40"),
        ({"prompt": "the", "temperature": -1}, "temperature must be 0"),
        ({"prompt": "the", "stop": [""]}, "a stop word must have a character at least"),
    ]:
        (tmp_path / "cases.json").write_text(json.dumps([case]))
        done = subprocess.run(command, env=android.environment(), capture_output=True, text=True, check=False)
        assert done.returncode
        assert why in done.stderr
