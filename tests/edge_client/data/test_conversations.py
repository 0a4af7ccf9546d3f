import json
import random

import pytest

from edge_client.data.conversations import example_of
from edge_client.data.examples import Example
from edge_client.data.sources import BadRow
from edge_client.data.templates import Template
from export.model.loading import template_of
from tests import chats

TEMPLATE = template_of(chats.tokenizer(chats.PLAIN["chatml"]))
SAID = chats.conversation(random.Random(3), turns=2)


def test_each_answer_of_a_conversation_is_learnt():
    example = example_of({"messages": SAID, "text": "no matter"}, TEMPLATE)
    assert example.is_whole
    assert example.text == TEMPLATE.render(SAID)
    assert [example.text[start:stop] for start, stop in example.learnt or ()] == [
        f"{message['content']}<|im_end|>" for message in SAID if message["role"] == "assistant"
    ]
    assert example == example_of({"messages": json.dumps(SAID)}, TEMPLATE)  # as a CSV file has it


def test_a_completion_is_learnt_with_its_end():
    example = example_of({"prompt": "2 + 2 = ", "completion": "4", "text": None}, TEMPLATE)
    assert example == Example("2 + 2 = 4</s>", learnt=((8, 13),))
    assert example_of({"prompt": "a", "completion": "b"}, Template()) == Example("ab", learnt=((1, 2),))


def test_a_text_is_learnt_as_a_whole():
    assert example_of({"text": "a b", "prompt": None}, TEMPLATE) == Example("a b")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "a"}, "both belong together"),
        ({"completion": "a"}, "both belong together"),
        ({"prompt": "a", "completion": " "}, "completion is empty"),
        ({"label": "a"}, "has no text"),
        ({"messages": []}, "must look like"),
        ({"messages": {"role": "user"}}, "must look like"),
        ({"messages": "[{]"}, "messages is not JSON"),
        ({"messages": ["hello"]}, "message 1 must have a role that is a text, got none"),
        ({"messages": [SAID[0], {"role": "assistant"}]}, "message 2 must have a content that is a text, got none"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "got list"),
        ({"messages": [SAID[0], {"role": "assistant", "content": "\ud800"}]}, "half of a surrogate pair"),
        ({"messages": SAID[:1]}, "nothing to learn"),
    ],
)
def test_rows_that_are_none(row, why):
    with pytest.raises(BadRow, match=why):
        example_of(row, TEMPLATE)


def test_conversations_without_a_template():
    with pytest.raises(BadRow, match="has no chat template"):
        example_of({"messages": SAID}, Template())


def test_an_answer_may_call_tools_and_say_nothing():
    template = Template("{% for m in messages %}{{ m.role }}:{{ m.content or m.tool_calls }};{% endfor %}")
    calls = {"role": "assistant", "content": None, "tool_calls": ["f"]}
    said = [{"role": "user", "content": "a"}, calls, {"role": "assistant", "content": "b"}]
    assert example_of({"messages": said}, template).text == "user:a;assistant:['f'];assistant:b;"
    with pytest.raises(BadRow, match="message 2 must have a content that is a text"):
        example_of({"messages": [said[0], {**calls, "tool_calls": []}]}, template)
