"""Chat templates as plain data, beside transformers on conversations at random."""

import random

import pytest

from edge_client.data.templates import Template
from edge_client.data.turns import chat, turns_of, written
from export.model.loading import template_of
from tests import chats

DEFAULT_SYSTEM = (  # as Qwen 2.5 and SmolLM 2
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
JOINED_SYSTEM = (  # as Gemma 3
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set prefix = messages[0]['content'] + '\n\n' %}"
    "{% set said = messages[1:] %}{% else %}{% set prefix = '' %}{% set said = messages %}{% endif %}"
    "{% for message in said %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n'"
    " + (prefix if loop.first else '') }}{{ message['content'] | trim }}{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
LLAMA_3_2 = (  # without its tools
    "{{- bos_token }}\n{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    "{%- set date_string = strftime_now('%d %b %Y') %}{%- else %}{%- set date_string = '26 Jul 2024' %}{%- endif %}"
    "{%- endif %}\n{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content']|trim %}"
    "{%- set messages = messages[1:] %}{%- else %}{%- set system_message = '' %}{%- endif %}\n"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: ' }}"
    "{{- date_string + '\n\n' + system_message + '<|eot_id|>' }}\n{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
WITH_DATE = {
    "llama-3.2": LLAMA_3_2,
    "llama-3": chats.PLAIN["llama-3"],
    "llama-3, marked": chats.MARKED["llama-3"],
    "all forms": chats.PLAIN["llama-3"].replace("%d %b %Y", "%a, %A %B %m/%d/%y"),
    "behind": "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|e|>{% if m.role == 'assistant' %}"
    "{{ strftime_now('%Y-%m-%d') }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
}
_HIDING = (  # as Qwen 3: thoughts stay in the last answer alone, which shows empty ones where it had none
    "{% for m in messages %}{% if m.role == 'assistant' %}{% set said, thought = m.content, '' %}"
    "{% if '</think>' in said %}{% set thought = said.split('</think>')[0].rstrip('\n').split('<think>')[-1] %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ '<|im_start|>assistant\n' }}"
    "{% if loop.last %}{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + said.lstrip('\n') }}"
    "{% else %}{{ said }}{% endif %}{{ '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THINKING = {
    "thoughts": _HIDING,
    "thoughts that are asked for": _HIDING.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}"),
    "thoughts that are never shown": (  # as DeepSeek R1
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>' + m.content }}"
        "{% elif m.role == 'system' %}{{ m.content }}{% else %}"
        "{{ '<|assistant|>' + m.content.split('</think>')[-1] + eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"
    ),
}
TEMPLATES = {
    **THINKING,
    "default system": DEFAULT_SYSTEM,
    "joined system": JOINED_SYSTEM,
    **{name: chats.PLAIN[name] for name in ("chatml", "gemma", "llama-2", "zephyr")},
    **{f"{name}, marked": chats.MARKED[name] for name in ("chatml", "gemma", "llama-2", "zephyr")},
    **{f"{name}, today": WITH_DATE[name] for name in WITH_DATE},
}
WITH_SYSTEM = (
    *THINKING,
    "default system", "joined system", "chatml", "chatml, marked", "zephyr", "zephyr, marked", "llama-3, today",
    "llama-3.2, today", "llama-3, marked, today", "all forms, today", "behind, today"
)  # fmt: skip


def conversation(rng: random.Random, name: str) -> list[dict[str, str]]:
    return thoughtful(rng, chats.conversation(rng, system=name in WITH_SYSTEM and rng.random() < 0.5))


def thoughtful(rng: random.Random, messages: list[dict[str, str]]) -> list[dict[str, str]]:
    """Some of the answers with thoughts, which most templates take for words."""
    for one in messages:
        if one["role"] == "assistant" and rng.random() < 0.5:
            thought = rng.choice(["", chats.words(rng), f"<think>{chats.words(rng)}"])
            one["content"] = f"<think>\n{thought}\n</think>{rng.choice(['', ' ', chr(10) * 2])}{one['content']}"
    return messages


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_are_those_of_transformers(name):
    theirs, rng = chats.tokenizer(TEMPLATES[name]), random.Random()
    turns = turns_of(template_of(theirs))
    assert turns is not None
    assert ("system" in turns.between[""]) == (name in WITH_SYSTEM)
    for _ in range(25):
        messages = conversation(rng, name)
        assert written(turns, messages) == theirs.apply_chat_template(messages, tokenize=False)
        asking = theirs.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        assert written(turns, messages[:-1], asks=True) == asking


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_same_is_learnt(name):
    template, rng = template_of(chats.tokenizer(TEMPLATES[name])), random.Random()
    turns = turns_of(template)
    assert turns is not None
    assert turns.answers is not None
    for _ in range(25):
        messages = conversation(rng, name)
        assert chat(turns, messages) == template.chat(messages)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "{% for %}",
        chats.PLAIN["thinking"],
        chats.PLAIN["llama-3"].replace("%d %b", "%-d %b"),
        chats.PLAIN["llama-3"].replace("'%d %b %Y')", "'%d %b %Y')[:2]"),
        chats.PLAIN["llama-3"].replace("'%d %b %Y')", "'%b') | upper"),
        "{% for m in messages %}{{ m.role }}: {{ m.content | upper }}\n{% endfor %}",
        "{% for m in messages %}{{ loop.index }} {{ m.content }}\n{% endfor %}",
        "{% for m in messages %}{{ m.content.split('<end>')[0] }}\n{% endfor %}",
        "{% for m in messages %}{% if 'http' in m.content %}link: {% endif %}{{ m.content }}\n{% endfor %}",
        "{% for m in messages %}{{ m.content.lstrip() }}\n{% endfor %}",
        "{% for m in messages[-2:] %}{{ m.content }}\n{% endfor %}",
    ],
    ids=[
        "none",
        "broken",
        "thoughts",
        "a form of dates",
        "a part of a date",
        "a date in capitals",
        "upper case",
        "numbers",
        "cut",
        "a word",
        "one side",
        "the last two",
    ],
)
def test_a_template_that_does_more_is_nothing(source):
    assert turns_of(Template(source, {"bos_token": "<s>"})) is None


def test_answers_that_have_no_place_are_not_learnt():
    """Nothing ends the last: white space at its end belongs to it, or does not."""
    before = "{% if not loop.first %}{{ '\n' }}{% endif %}"
    template = Template("{% for m in messages %}" + before + "{{ m.role + ': ' + m.content }}{% endfor %}")
    turns = turns_of(template)
    assert turns is not None
    assert turns.answers is None
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b "}]
    assert written(turns, messages) == template.render(messages) == "user: a\nassistant: b "
