"""A `Modelfile`, by which Ollama makes a model of a base and an adapter, or of a whole model's folder."""

from __future__ import annotations

from edge_client.data.templates import ANSWERING, Template
from server.formats.turns import Turns, turns_of

_QUOTES = '"""'
_OF_ITS_OWN = "{{", "}}", _QUOTES
"""The strings with a meaning in Ollama's templates and files."""


def modelfile(source: str, adapter: str | None, template: Template, *, base: str) -> str:
    """Write the text of a Modelfile.

    Args:
        source: the base model's file or folder, or its name in Ollama.
        adapter: the adapter's file; None where the source has it in it already.
        template: the tokenizer's.
        base: what the base model is called where it was trained on.
    """
    lines = [f"# ollama create NAME -f Modelfile; the base is {base}", f"FROM {source}"]
    if adapter is not None:
        lines.append(f"ADAPTER {adapter}")
    turns = turns_of(template)
    if turns is not None and not any(own in turns.written(_one_of_each(turns)) for own in _OF_ITS_OWN):
        lines.append(f"TEMPLATE {_QUOTES}{_in_go(turns)}{_QUOTES}")
        if stop := turns.roles[ANSWERING].after.strip():
            lines.append(f'PARAMETER stop "{stop}"')
    elif template.source:
        lines.append("# The chat template does more than put words around messages: the base's own is taken as it is.")
    return "\n".join(lines) + "\n"


def _one_of_each(turns: Turns) -> list[dict[str, str]]:
    return [{"role": role, "content": ""} for role in turns.roles]


def _in_go(turns: Turns) -> str:
    """Translate turns into the language of Go's templates."""
    branches = [
        f'{{{{ {word} eq .Role "{role}" }}}}{around.before}{{{{ .Content }}}}{around.after}'
        for word, (role, around) in zip(("if", *("else if",) * 9), turns.roles.items(), strict=False)
    ]
    return f"{turns.lead}{{{{ range .Messages }}}}{''.join(branches)}{{{{ end }}}}{{{{ end }}}}{turns.asking}"
