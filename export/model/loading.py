"""Loading what is to be exported: a model and its tokenizer, from a folder, a GGUF file, a package or the hub."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerFast

from edge_client.checkpoints import PACKAGE_PREFIX, local_model, require_hub
from edge_client.data.templates import Template
from export.errors import ExportError
from export.model import mapped
from export.model.gguf.checkpoint import GgufCheckpoint
from export.model.kept import KeptBlocks
from export.tasks.task import ModelTask

_POSITION_TABLES = ("position_embeddings", "wpe", "embed_positions")


Built = tuple[type, str, str]
"""Code, task and configuration."""

_T = TypeVar("_T")
_traced: dict[tuple[Built, Hashable], Any] = {}


def traced_once(built: Built, what: Hashable, trace: Callable[[], _T]) -> _T:
    """Trace once for models that differ in their weights alone: one process may open many."""
    if (built, what) not in _traced:
        _traced[built, what] = trace()
    return _traced[built, what]


@dataclass
class Loaded:
    """A model ready to be adapted, with what the bundle keeps of its origin."""

    name: str
    model: PreTrainedModel
    task: ModelTask
    labels: tuple[str, ...]
    tokenizer: PreTrainedTokenizerFast | None
    pad_token_id: int
    drawn: tuple[str, ...] = ()
    """Modules of the base model that its weights lack: they are new, so that an adapter must bring them along."""
    kept: Mapping[nn.Parameter, KeptBlocks] | None = None
    """Blocks that weights came in from a GGUF file; None where there is no such file."""
    parameters: int = field(init=False)
    """Weights before any adapter is added, which happens in place."""

    def __post_init__(self) -> None:
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def built(self) -> Built:
        """Describe what is alike of models that differ in their weights alone."""
        return type(self.model), self.task.name, self.model.config.to_json_string(use_diff=False)

    @property
    def layers(self) -> int:
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The modules of its blocks; none where they have no list of their own."""
        lists = [m for m in self.model.modules() if isinstance(m, nn.ModuleList) and len(m) == self.layers]
        return [*max(lists, key=lambda blocks: sum(p.numel() for p in blocks.parameters()), default=nn.ModuleList())]

    @property
    def pieces(self) -> Sequence[nn.Module]:
        """The modules that hold nearly all of its weights: its blocks and its tables of words."""
        tables = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        return [*self.blocks, *(table for table in tables if table is not None)]

    @property
    def vocabulary(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def positions(self) -> int | None:
        """The most tokens of an example; None where positions are computed, not looked up."""
        counts = [
            _usable_positions(module)
            for name, module in self.model.named_modules()
            if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in _POSITION_TABLES
        ]
        return min(counts, default=None)

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens by which the model ends a text, as its own `generate` knows them."""
        configs = getattr(self.model, "generation_config", None), self.model.config.get_text_config()
        of_tokenizer = getattr(self.tokenizer, "eos_token_id", None)
        known = [token for config in configs if (token := getattr(config, "eos_token_id", None)) is not None]
        newest = next(iter(known), of_tokenizer)
        return tuple(newest) if isinstance(newest, list) else () if newest is None else (int(newest),)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The token inputs that the model reads, in the order of a bundle's programs."""
        has_types = getattr(self.model.config, "type_vocab_size", 0) > 1
        return ("input_ids", "attention_mask", *(("token_type_ids",) if has_types else ()))

    def example_inputs(self, batch: int, length: int) -> dict[str, Tensor]:
        """Inputs of the right shape and dtype for tracing, with two lengths so that masks are not constant."""
        tokens = {name: torch.ones(batch, length, dtype=torch.int64) for name in self.inputs}
        if "token_type_ids" in tokens:
            tokens["token_type_ids"].zero_()
        return {**tokens, "labels": torch.zeros(self.task.kind.label_shape(batch, length), dtype=torch.int64)}


def _usable_positions(table: nn.Embedding) -> int:
    """Models of RoBERTa's kind count from behind the padding index, OPT from 2."""
    offset = getattr(table, "offset", 0 if table.padding_idx is None else table.padding_idx + 1)
    return table.num_embeddings - offset


def is_too_large(source: str) -> bool:
    """Tell whether a model's weights should stay in their files."""
    place = _place(source, random_weights=False)
    return place is not None and not mapped.fits_memory(_float_bytes(place))


def copied_bytes(source: str) -> int:
    """Estimate the bytes of the copy that weights are mapped from."""
    place = _place(source, random_weights=False)
    if place is None:
        return 0
    return _float_bytes(place) if place.is_file() else mapped.widened_bytes(place)


def _float_bytes(place: Path) -> int:
    return 4 * GgufCheckpoint(place).parameters if place.is_file() else mapped.float_bytes(place)


def load(
    source: str,
    task: ModelTask,
    labels: Sequence[str],
    *,
    random_weights: bool = False,
    seed: int = 0,
    copy: Path | None = None,
) -> Loaded:
    """Load `source` for `task` in float32 with attention written out, as forward AD needs it.

    With a folder for a `copy`, weights stay in files: the checkpoint's own, or the copy's where they must be converted.
    """
    place = _place(source, random_weights=random_weights)
    where = str(place) if place else source
    file = GgufCheckpoint(place) if place is not None and place.is_file() else None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)  # a new task layer starts from the same values in every export
    options: dict[str, Any] = {"attn_implementation": "eager"}
    config = _config(where) if file is None else file.config()
    task.configure(config, labels)
    if file is not None and copy is None and not random_weights:
        options["state_dict"] = dict(file.weights())
    weights = where if copy is None else _in_files(source, file or place, copy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, drawn = _model(weights, task, config, options, random_weights=random_weights)
        tokenizer = _tokenizer(where) if file is None else file.tokenizer()
    model.eval().float().requires_grad_(False)
    if file is not None and model.can_generate():
        model.generation_config.eos_token_id = file.words.ends or None
    pad = _pad_token(tokenizer, config)
    for part in (model.config, model.config.get_text_config()):
        part.use_cache = False
        part.pad_token_id = pad
    name = source if place is None or source.startswith(PACKAGE_PREFIX) else file.name if file else place.resolve().name
    model.name_or_path = name  # what PEFT notes as the base: the same wherever the folder lies
    loaded = Loaded(name, model, task, tuple(labels), tokenizer, pad, drawn)
    if file is not None and not random_weights:
        loaded.kept = file.kept(model)
    return loaded


def _in_files(source: str, checkpoint: GgufCheckpoint | Path | None, copy: Path) -> str:
    if checkpoint is None:
        raise ExportError(
            f"--low-memory maps weights from files, and {source} is no folder: download it into one first"
        )
    return str(checkpoint.write(copy) if isinstance(checkpoint, GgufCheckpoint) else mapped.widened(checkpoint, copy))


def _place(source: str, *, random_weights: bool) -> Path | None:
    """Return the folder or the GGUF file that `source` names; None for a hub name."""
    path = local_model(source)
    if path is None:
        require_hub(source)
        return None
    if path.is_file():
        return path
    if not (path / "config.json").is_file():
        raise ExportError(f"{source} holds no model: expected config.json and model.safetensors, or a .gguf, in it")
    if not random_weights and not any(path.glob("*.safetensors")) and not any(path.glob("*.bin")):
        raise ExportError(
            f"{source} holds a config.json but no weights (model.safetensors); add them, or pass --random-weights to "
            "export the shape alone"
        )
    return path


def _config(where: str) -> Any:
    try:
        return AutoConfig.from_pretrained(where)
    except Exception as error:
        raise ExportError(
            f"cannot load a model from {where!r}: {_first_line(error)} (expected a folder with config.json, "
            f"a .gguf, {PACKAGE_PREFIX}NAME, or a name on the hub that this machine can reach)"
        ) from error


def _model(
    where: str, task: ModelTask, config: Any, options: dict[str, Any], *, random_weights: bool
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """Load the model; return it with what of its base its weights lack."""
    factory = getattr(transformers, task.model_class)
    try:
        if random_weights:
            model: PreTrainedModel = factory.from_config(config, **options)
            return model, ()
        if "state_dict" in options:
            with torch.device("meta"):
                factory = type(factory.from_config(config))
        loaded, loading_info = factory.from_pretrained(
            None if "state_dict" in options else where,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
        )
    except Exception as error:
        if "Unrecognized configuration class" in str(error):
            raise ExportError(
                f"transformers has no {task.model_class} for {type(config).__name__}, so the task {task.name} does not "
                "fit this model; choose another --task"
            ) from error
        raise ExportError(
            f"cannot load the model's weights from {where!r}: {_first_line(error)}; give a whole checkpoint"
        ) from error
    _refuse_partial(where, task, loaded, loading_info)
    pooler = _pooler(loaded)
    lacks = any(name.startswith(f"{pooler}.") for name in loading_info["missing_keys"])
    return loaded, (pooler,) if lacks else ()


def _pooler(model: PreTrainedModel) -> str:
    """Name weights that checkpoints of language models and encoders of sentences may come without."""
    return f"{model.base_model_prefix}.pooler"


def _refuse_partial(where: str, task: ModelTask, model: PreTrainedModel, loading_info: dict[str, Any]) -> None:
    """Refuse partial weights: a task layer may be new or have other labels; the base model must be whole."""
    base = model.base_model_prefix + "."
    optional = _pooler(model) + "."
    misfits = sorted(
        f"{name} {tuple(has)} instead of {tuple(wants)}" for name, has, wants in loading_info["mismatched_keys"]
    )
    missing = sorted(name for name in loading_info["missing_keys"] if not name.startswith(optional))
    for what, names in (("have other shapes than config.json says", misfits), ("lack parts of the model", missing)):
        broken = [name for name in names if name.startswith(base) or not task.kind.has_head]
        if broken:
            shown = ", ".join(broken[:3]) + (f" and {len(broken) - 3} more" if len(broken) > 3 else "")
            raise ExportError(f"the weights in {where!r} {what}: {shown}; give a whole checkpoint of this model")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _tokenizer(where: str) -> PreTrainedTokenizerFast | None:
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(where)
    except Exception:  # noqa: BLE001 -- whatever the library raises, the model has no tokenizer that a device can load
        return None
    known = (
        isinstance(tokenizer, PreTrainedTokenizerFast) and tokenizer.get_vocab().keys() - tokenizer.all_special_tokens
    )
    return tokenizer if known else None  # a folder without its files gives a tokenizer that knows no word


def template_of(tokenizer: PreTrainedTokenizerFast) -> Template:
    """Return a tokenizer's chat template, the default where it has several."""
    named: Any = tokenizer.chat_template
    source = named.get("default") if isinstance(named, dict) else named
    known: dict[str, Any] = tokenizer.special_tokens_map
    return Template(source or "", {name: f"{token}" for name, token in known.items() if isinstance(token, str)})


def _pad_token(tokenizer: PreTrainedTokenizerFast | None, config: Any) -> int:
    """Return the padding token; a model that has none pads with its end of text, which the attention mask hides."""
    text = config.get_text_config()
    candidates = [getattr(tokenizer, "pad_token_id", None), text.pad_token_id, text.eos_token_id, 0]
    token = next(candidate for candidate in candidates if candidate is not None)
    return int(token[0] if isinstance(token, list) else token)
