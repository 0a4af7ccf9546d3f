"""Measure how fast a device answers, beside llama.cpp and eager transformers, and compare its greedy tokens.

    python benchmarks/chat.py BUNDLE MODEL [--llama PYTHON --gguf FILE ...] [--threads 1] [--prompts 20] [--json]

MODEL is the Hugging Face folder that BUNDLE was exported from, with `--generate`. Questions go through its chat
template. Everybody has a process of its own; they take turns, and the fastest turn of each counts, of a prompt and of
the tokens behind it, by the clock and by the time of the process's threads, as a busy machine's clock says little.
PYTHON is one that imports llama_cpp. Then the first tokens of an answer to each question are compared with those of
transformers' `generate` in float32: a bundle of `--quantize none` must give the same, or the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

QUESTIONS = (
    "What is the capital of France?", "Name three colours.", "What is 7 times 8?", "Write a haiku about the sea.",
    "Who wrote Hamlet?", "Explain gravity to a child.", "What does a compiler do?", "Give me a recipe for pancakes.",
    "What is the largest planet?", "Translate 'good morning' into Spanish.", "How do plants make food?",
    "What is a prime number?", "Tell me a joke.", "Why is the sky blue?", "How many days has a leap year?",
    "What is an adjective?", "Name a mammal that flies.", "What is photosynthesis in one sentence?",
    "List two uses of copper.", "How do I boil an egg?",
)  # fmt: skip
EAGER, OURS, LLAMA = "eager transformers, float32", "spry generate", "llama.cpp"
_TURN = """
def turn(read, clear, prompt, tokens):
    import time
    clear()
    clocks = lambda: (time.perf_counter(), time.process_time())
    began = clocks()
    token = read(prompt)
    first = clocks()
    token = read([token])
    second = clocks()
    for _ in range(tokens):
        token = read([token])
    last = clocks()
    return [len(prompt) / (b - a) for a, b in zip(began, first)] + [tokens / (b - a) for a, b in zip(second, last)]
"""
_LLAMA = """
import sys
import numpy as np
import llama_cpp
file, threads, tokens, prompt = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), eval(sys.argv[4])
model = llama_cpp.Llama(file, n_ctx=len(prompt) + tokens + 8, n_batch=512, n_threads=threads, n_threads_batch=threads,
                        verbose=False)
def read(ids):
    model.eval(ids)
    logits = llama_cpp.llama_get_logits(model._ctx.ctx)
    return int(np.ctypeslib.as_array(logits, (model.n_vocab(),)).argmax())
for _ in sys.stdin:
    print(turn(read, model.reset, prompt, tokens), flush=True)
"""
Reader = tuple[Callable[[list[int]], int], Callable[[], None]]
"""Reads tokens and says the likeliest next one; forgets them."""


def _decoder(bundle: Path, threads: int) -> Any:
    from edge_client.bundle.folder import Bundle
    from edge_client.generation.decoder import Decoder
    from edge_client.runtimes.runtime import open_runtime

    opened = Bundle.open(bundle, verify=False)
    name = next(iter(opened.manifest.runtimes))
    runtime = open_runtime(name, opened.folder, threads=threads)
    return Decoder(opened.manifest, runtime, name, opened.initial_adapter())


def _ours(bundle: Path, threads: int) -> Reader:
    decoder = _decoder(bundle, threads)
    return lambda ids: int(decoder.read(ids).argmax()), decoder.clear


def _eager(model: Path, threads: int) -> Reader:
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(threads)
    factory: Any = AutoModelForCausalLM
    loaded = factory.from_pretrained(model, dtype=torch.float32).eval()
    state: dict[str, Any] = {}

    def clear() -> None:
        state["cache"] = DynamicCache(config=loaded.config)

    def read(ids: list[int]) -> int:
        kept = {"past_key_values": state["cache"], "use_cache": True, "logits_to_keep": 1}
        with torch.no_grad():
            return int(loaded(input_ids=torch.tensor([ids]), **kept).logits[0, -1].argmax())

    return read, clear


def work(which: str, folder: str, threads: str, tokens: str, prompt: str) -> None:
    """One process's part: a turn for each line that it reads."""
    read, clear = {OURS: _ours, EAGER: _eager}[which](Path(folder), int(threads))
    space: dict[str, Any] = {}
    exec(_TURN, space)  # the same lines that llama.cpp's process has
    for _ in sys.stdin:
        print(space["turn"](read, clear, json.loads(prompt), int(tokens)), flush=True)


def prompts(model: Path, count: int) -> list[list[int]]:
    """The tokens of questions through the model's template."""
    from transformers import AutoTokenizer

    factory: Any = AutoTokenizer
    tokenizer = factory.from_pretrained(model)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS[:count]]
    return [
        list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False))
        for chat in chats
    ]


def rates(options: argparse.Namespace, prompt: list[int]) -> Iterator[tuple[str, list[float]]]:
    """Tokens a second: of the prompt by the clock and by the threads' time, and of what follows."""
    numbers = [str(options.threads), str(options.tokens), json.dumps(prompt)]
    own = [sys.executable, __file__, "--work"]
    commands: dict[str, Sequence[str]] = {
        EAGER: [*own, EAGER, str(options.model), *numbers],
        OURS: [*own, OURS, str(options.bundle), *numbers],
    }
    for file in options.gguf:
        commands[f"{LLAMA}, {file.name}"] = [options.llama, "-c", _TURN + _LLAMA, str(file), *numbers]
    with ExitStack() as stack:
        started: dict[str, Any] = {}
        for name, command in commands.items():
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            started[name] = stack.enter_context(subprocess.Popen(command, text=True, **pipes))
        turns = [{name: _turn(process) for name, process in started.items()} for _ in range(options.rounds)]
        for process in started.values():
            process.stdin.close()
    for name in started:
        yield name, [max(values) for values in zip(*(turn[name] for turn in turns), strict=True)]


def _turn(process: subprocess.Popen[str]) -> list[float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    rates: list[float] = json.loads(process.stdout.readline())
    return rates


def first_differences(options: argparse.Namespace, asked: list[list[int]]) -> list[int]:
    """Return each prompt's first token that is not transformers'; the number of generated ones if all are equal."""
    import torch
    from transformers import AutoModelForCausalLM

    from edge_client.generation.generator import GenerationConfig, Generator

    factory: Any = AutoModelForCausalLM
    model = factory.from_pretrained(options.model, dtype=torch.float32).eval()
    torch.set_num_threads(options.threads)
    no_tokenizer: Any = None
    generator = Generator(_decoder(options.bundle, options.threads), no_tokenizer, ends=())
    places: list[int] = []
    for prompt in asked:
        ids = torch.tensor([prompt])
        expected = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=options.compared, do_sample=False,
            repetition_penalty=1.0, eos_token_id=None, pad_token_id=0,
        )[0, len(prompt) :].tolist()  # fmt: skip
        told = list(generator.tokens(prompt, GenerationConfig(max_tokens=options.compared)))
        same = [one == other for one, other in zip(told, expected, strict=True)]
        places.append(same.index(False) if False in same else len(same))
    return places


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("model", type=Path, help="the Hugging Face folder that it was exported from")
    parser.add_argument("--llama", default=sys.executable, help="a Python that imports llama_cpp")
    parser.add_argument("--gguf", type=Path, nargs="*", default=[], help="files for llama.cpp")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=96, help="tokens of the prompt that is timed")
    parser.add_argument("--tokens", type=int, default=32, help="timed behind it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=20, help="questions whose answers are compared; 0: none")
    parser.add_argument("--compared", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from edge_client.bundle.folder import Bundle

    began = time.monotonic()
    asked = prompts(options.model, max(options.prompts, 1))
    timed = (asked[0] * options.prompt)[: options.prompt]
    found = dict(rates(options, timed)) if options.rounds else {}
    places = first_differences(options, asked) if options.prompts else []
    same = sum(place == options.compared for place in places)
    runtimes = Bundle.open(options.bundle, verify=False).manifest.runtimes
    precision = next(iter(runtimes.values())).precision
    if options.json:
        print(json.dumps({"precision": precision, "rates": found, "places": places, "same": same}))
    else:
        head = f"tokens a second, {options.threads} thread{'s' * (options.threads > 1)}"
        print(f"{head:<44}{'prompt':>9}{'CPU':>9}{'then':>9}{'CPU':>9}")
        for name, numbers in found.items():
            print(
                f"{name if name != OURS else f'{OURS}, {precision}':<44}" + "".join(f"{one:>9.1f}" for one in numbers)
            )
        if places:
            print(f"{same} of {len(places)} answers have transformers' {options.compared} first tokens; others differ "
                  f"from place {', '.join(str(p + 1) for p in places if p < options.compared) or 'none'}")  # fmt: skip
        print(f"took {time.monotonic() - began:.0f} s")
    sys.exit(precision == "none" and same < len(places))


if __name__ == "__main__":
    main()
