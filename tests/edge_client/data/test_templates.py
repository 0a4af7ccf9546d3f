import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edge_client.data.templates import LONGEST_TEXT, Template
from edge_client.errors import BundleError, DataError, RuntimeMissing
from export.model.loading import template_of
from tests import chats

NAMES = list(chats.PLAIN)


def conversations(name: str, count: int = 25) -> list[list[dict[str, str]]]:
    rng = random.Random(hash(name) ^ random.SystemRandom().getrandbits(32))
    return [chats.conversation(rng, system=name in chats.WITH_SYSTEM and rng.random() < 0.5) for _ in range(count)]


@pytest.mark.parametrize("name", NAMES)
def test_conversations_read_as_transformers_has_them(name):
    theirs = chats.tokenizer(chats.PLAIN[name])
    ours = template_of(theirs)
    for messages in conversations(name):
        assert ours.render(messages) == theirs.apply_chat_template(messages, tokenize=False)
        asking = messages[:-1]
        assert ours.render(asking, add_generation_prompt=True) == theirs.apply_chat_template(
            asking, tokenize=False, add_generation_prompt=True
        )


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_transformers(name):
    theirs = chats.tokenizer(chats.PLAIN[name])
    for messages in conversations(name, 5):
        ids = theirs.apply_chat_template(messages, return_dict=False)
        text = template_of(theirs).render(messages)
        assert chats.trained().encode(text, add_special_tokens=False).ids == ids


def expected(name: str, messages: list[dict[str, str]]) -> list[int]:
    """Tell for each token whether it is of an answer: by transformers, from a template that marks them."""
    marked = chats.tokenizer(chats.MARKED[name])
    found = marked.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    return list(found["assistant_masks"])


def of_answers(template: Template, messages: list[dict[str, str]]) -> list[int]:
    chat = template.chat(messages)
    encoding = chats.trained().encode(chat.text, add_special_tokens=False)
    return [int(any(first < stop and start < last for start, stop in chat.answers)) for first, last in encoding.offsets]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["found", "marked"])
def test_answers_are_where_the_template_would_mark_them(name, how):
    source = chats.MARKED[name] if how == "marked" else chats.PLAIN[name]
    template = template_of(chats.tokenizer(source))
    for messages in conversations(name):
        assert template.chat(messages).text == template.render(messages)
        assert of_answers(template, messages) == expected(name, messages)


def test_answers_with_thoughts_that_later_turns_hide():
    template = template_of(chats.tokenizer(chats.PLAIN["thinking"]))
    messages = chats.conversation(random.Random(1), turns=3)
    messages[1]["content"] = "<think>\nhm\n</think>\n\nyes"
    chat = template.chat(messages)
    learnt = [chat.text[start:stop] for start, stop in chat.answers]
    assert learnt[0] == "yes<|im_end|>"
    assert learnt[2] == f"<think>\n\n</think>\n\n{messages[5]['content'].lstrip(chr(10))}<|im_end|>"


def test_an_end_of_line_is_learnt_where_nothing_else_ends_an_answer():
    template = Template("{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}")
    chat = template.chat([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert [chat.text[start:stop] for start, stop in chat.answers] == ["assistant: b\n"]


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m.content | upper ~ loop.last ~ messages | length }}{% endfor %}",
        "{{ messages | length }}",
    ],
    ids=["later turns change earlier ones", "no answer is shown"],
)
def test_a_template_whose_answers_have_no_place_is_refused(source):
    messages = chats.conversation(random.Random(0), turns=2)
    with pytest.raises(DataError, match="where its answer stands is not known"):
        Template(source).chat(messages)


def test_a_template_that_marks_no_answer_of_this_conversation():
    source = "{% for m in messages if m.role == 'bot' %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    with pytest.raises(DataError, match="marks no answer"):
        Template(source).chat([{"role": "assistant", "content": "a"}])


def test_a_conversation_without_an_answer():
    with pytest.raises(DataError, match="nothing to learn"):
        Template(chats.PLAIN["chatml"]).chat([{"role": "user", "content": "a"}])


def test_what_a_template_refuses_is_told():
    twice = [{"role": "user", "content": "a"}] * 2
    with pytest.raises(DataError, match="Conversation roles must alternate"):
        Template(chats.PLAIN["gemma"], {"bos_token": "<s>"}).render(twice)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% set n = namespace() %}{% set n.__init__ = 1 %}{{ n['_x'] }}",
        "{{ namespace(_x=1) }}",
        "{% include '/etc/passwd' %}",
        "{{ 'a' * 3 if open('/etc/passwd') }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
    ],
)
def test_templates_reach_nothing_outside_their_sandbox(source):
    messages = [{"role": "user", "content": "a"}]
    try:
        text = Template(source).render(messages)
    except DataError:
        text = ""
    assert text == ""
    assert messages == [{"role": "user", "content": "a"}]


def test_a_template_without_an_end_is_stopped():
    source = "{% for a in range(9999) %}{% for b in range(9999) %}{{ 'x' * 999 }}{% endfor %}{% endfor %}"
    with pytest.raises(DataError, match=f"more than {LONGEST_TEXT:,} characters"):
        Template(source).render([])


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**9 }}",
        "{{ 'a'.center(10**9) }}",
        "{{ 'a'|center(10**9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10**9) }}",
        "{{ 9**(9**9) }}",
        "{% set x = 9 %}" + "{% set x = x * x %}" * 60 + "{{ x }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% set x = 'a' %}" + "{% set x = x ~ x %}" * 60,
        "{% set x = 'a' %}" + "{% set x = x + x %}" * 60,
        "{% set x = [1] %}" + "{% set x = [x, x] %}" * 60 + "{{ x }}",
        "{% set x = (1,) %}" + "{% set x = (x, x) %}" * 60 + "{{ x == x|list }}",
        "{% set x = {} %}" + "{% set x = {'a': x, 'b': x} %}" * 60 + "{{ x|tojson }}",
        "{{ ([range(100000)] * 10000)|map('list')|list|length }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}",
        "{{ (['a' * 1000000] * 100000)|join }}",
        "{{ ('\\n' * 1000000)|indent(99999) }}",
        "{{ messages|tojson(indent=10**9) }}",
        "{{ ([[1] * 10000] * 10000)|sum(start=[]) }}",
        "{% set n = namespace(x='a') %}{% for i in range(64) %}{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
        "{% set x %}{% for i in range(99999) %}" + "word " * 1000 + "{% endfor %}{% endset %}",
        "{% set s = 'a' * 4000000 %}{% for i in range(99999) %}{% if s[1:] == s %}{% endif %}{% endfor %}",
    ],
)
def test_a_template_that_takes_too_much_is_refused_in_one_line(source):
    with pytest.raises((DataError, BundleError)) as refused:
        Template(source).render([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "there"}])
    assert "\n" not in str(refused.value)
    assert "Memory" not in str(refused.value)


def test_what_templates_do_is_within_their_budget():
    source = (
        "{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ '%5s' % m.role }}{{ m.content|trim ~ eos_token }}"
        "{% else %}none{% endfor %}{% for k, v in {'a': 1}.items() %}{{ k ~ v }}{% endfor %}{{ '{:>3}'.format('x') }}"
        "{{ messages|map(attribute='content')|join(', ') }}{% set x %}{{ 1 }}b{% endset %}{{ x }}{{ ('a', 'b')[0] }}"
    )
    long = [{"role": "user", "content": "a word " * 100}] * 2000
    assert Template(source).render(long).startswith("1/2000  usera word")


def test_a_broken_template():
    with pytest.raises(BundleError, match="cannot be read"):
        Template("{% for %}").render([])


def test_no_template():
    with pytest.raises(DataError, match="has no chat template"):
        Template().render([{"role": "user", "content": "a"}])


def test_without_jinja_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(RuntimeMissing, match=r"extra 'chat'"):
        Template("x").render([])


def test_a_bundle_keeps_it(tmp_path):
    template = Template(chats.PLAIN["gemma"], {"eos_token": "</s>", "bos_token": "<s>"})
    (tmp_path / "tokenizer_config.json").write_bytes(template.written())
    bundle = SimpleNamespace(folder=tmp_path, manifest=SimpleNamespace(chat_template="tokenizer_config.json"))
    read = Template.of(bundle)  # type: ignore[arg-type]
    assert (read.source, read.tokens, read.end) == (template.source, template.tokens, "</s>")
    Path(tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(BundleError, match="copy the bundle again"):
        Template.of(bundle)  # type: ignore[arg-type]
    bundle.manifest.chat_template = None
    assert Template.of(bundle).source == ""  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_a_models_folder_has_it_as_transformers_wrote_it(name, tmp_path):
    theirs = chats.tokenizer(chats.PLAIN[name])
    theirs.save_pretrained(tmp_path)
    read, expected = Template.beside(tmp_path), template_of(theirs)
    assert read.source == expected.source
    assert read.tokens.items() >= expected.tokens.items()


def test_folders_of_older_and_other_versions(tmp_path):
    config = tmp_path / "tokenizer_config.json"
    assert Template.beside(tmp_path).source == ""
    several = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    config.write_text(json.dumps({"chat_template": several, "eos_token": {"content": "</s>"}, "pad_token": None}))
    read = Template.beside(tmp_path)
    assert (read.source, read.tokens) == ("b", {"eos_token": "</s>"})
    config.write_text("{")
    with pytest.raises(BundleError, match="cannot be read"):
        Template.beside(tmp_path)
