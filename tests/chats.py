"""Chat templates as models come with them, a tokenizer for them, and random conversations."""

from __future__ import annotations

import random
from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

BEGIN, END = "<s>", "</s>"
SPECIAL = (
    BEGIN, END, "<pad>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<start_of_turn>", "<end_of_turn>",
)  # fmt: skip

_WITH_ANSWERS_MARKED = {
    "chatml": (
        "{% for message in messages %}{% if message.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
        "«{{ message.content + '<|im_end|>' }}»{{ '\n' }}"
        "{% else %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    # Qwen 3: thoughts stay in the last answer alone, which shows an empty thought where it had none.
    "thinking": (
        "{%- set ns = namespace(last=-1) %}\n"
        "{%- for message in messages[::-1] %}\n"
        "    {%- set index = (messages | length - 1) - loop.index0 %}\n"
        "    {%- if ns.last < 0 and message.role == 'user' %}{%- set ns.last = index %}{%- endif %}\n"
        "{%- endfor %}\n"
        "{%- for message in messages %}\n"
        "    {%- if message.role != 'assistant' %}\n"
        "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
        "    {%- else %}\n"
        "        {{- '<|im_start|>assistant\\n' }}\n"
        "        {%- set shown = message.content.split('</think>')[-1].lstrip('\\n') %}\n"
        "        «{%- if loop.index0 > ns.last %}\n"
        "            {{- '<think>\\n\\n</think>\\n\\n' + shown }}\n"
        "        {%- else %}\n"
        "            {{- shown }}\n"
        "        {%- endif %}\n"
        "        {{- '<|im_end|>' }}»\n"
        "        {{- '\\n' }}\n"
        "    {%- endif %}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
    ),
    "llama-2": (
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
        "{% set system_message = messages[0]['content'] %}"
        "{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
        "{% for message in loop_messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if loop.index0 == 0 and system_message != false %}"
        "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
        "{% else %}{% set content = message['content'] %}{% endif %}"
        "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}«{{ ' '  + content.strip() + ' ' + eos_token }}»{% endif %}"
        "{% endfor %}"
    ),
    "llama-3": (
        "{{- bos_token }}\n"
        "{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}\n"
        "{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + date_string + '\\n\\n<|eot_id|>' }}\n"
        "{%- for message in messages %}\n"
        "    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}\n"
        "    {%- if message.role == 'assistant' %}\n"
        "        «{{- message['content'] | trim + '<|eot_id|>' }}»\n"
        "    {%- else %}\n"
        "        {{- message['content'] | trim + '<|eot_id|>' }}\n"
        "    {%- endif %}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}\n"
        "    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n"
        "{%- endif %}\n"
    ),
    "gemma": (
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if (message['role'] == 'assistant') %}{{ '<start_of_turn>model\n' }}"
        "«{{ message['content'] | trim + '<end_of_turn>' }}»{{ '\n' }}"
        "{% else %}{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
    ),
    "zephyr": (
        "{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
        "{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n"
        "{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n"
        "{{ '<|assistant|>\n' }}«{{ message['content'] + eos_token }}»{{ '\n' }}{% endif %}\n"
        "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
    ),
}
PLAIN = {name: text.replace("«", "").replace("»", "") for name, text in _WITH_ANSWERS_MARKED.items()}
"""As they come."""
MARKED = {
    name: text.replace("«", "{% generation %}").replace("»", "{% endgeneration %}")
    for name, text in _WITH_ANSWERS_MARKED.items()
}
"""The same, each answer in a block of its own."""
WITH_SYSTEM = ("chatml", "thinking", "llama-2", "llama-3", "zephyr")

_WORDS = [
    "the",
    "tea",
    "is",
    "hot,",
    "naïve",
    "日本語",
    "🙂🙂",
    "<b>&amp;",
    "'quoted'",
    '"',
    "{{ x }}",
    "don't",
    "42",
    "ok.",
]


def words(rng: random.Random, most: int = 12) -> str:
    """A text, at times of several lines and with white space around."""
    text = "".join(rng.choice(_WORDS) + rng.choice([" ", " ", " ", "\n", "  "]) for _ in range(rng.randint(1, most)))
    return rng.choice([text, text.strip(), text.strip(), f" {text}"])


def conversation(rng: random.Random, *, turns: int | None = None, system: bool = False) -> list[dict[str, str]]:
    """Questions and answers in turn."""
    said = [{"role": "system", "content": words(rng)}] if system else []
    for _ in range(turns or rng.randint(1, 4)):
        said += [{"role": "user", "content": words(rng)}, {"role": "assistant", "content": words(rng)}]
    return said


@cache
def trained() -> Tokenizer:
    """Byte-level pairs, as of Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=list(SPECIAL), initial_alphabet=alphabet)
    rng = random.Random(0)
    tokenizer.train_from_iterator([words(rng, 40) for _ in range(200)], trainer)
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[(BEGIN, begin)])
    return tokenizer


def tokenizer(template: str | None = None) -> PreTrainedTokenizerFast:
    """As transformers has it."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(trained().to_str()),
        bos_token=BEGIN,
        eos_token=END,
        pad_token="<pad>",
        chat_template=template,
    )
