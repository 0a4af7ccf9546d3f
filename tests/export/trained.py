"""A bundle whose weights have moved, beside what PEFT makes of them: the oracle of its programs."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch.func import functional_call, jvp

from edge_client.bundle.adapters import folded
from edge_client.bundle.folder import Bundle
from edge_client.step.stepper import Stepper
from export.tasks.registry import MODEL_TASKS
from tests.conftest import LABELS

BATCH, LENGTH = 2, 8


class Trained:
    """A bundle with its trainable tensors moved, and the model that PEFT makes of the same tensors."""

    def __init__(self, folder: Path, base: Path, scratch: Path, batch: int = BATCH, seed: int = 0) -> None:
        self.folder, self.batch = folder, batch
        self.bundle = Bundle.open(folder)
        self.manifest = self.bundle.manifest
        generator = np.random.default_rng(seed)
        initial = self.bundle.initial_adapter()
        self.weights = {
            name: (initial[name] + 0.1 * generator.standard_normal(initial[name].shape)).astype(np.float32)
            for name in sorted(self.trained)
        }
        self.tokens, self.labels = self._inputs(generator)
        self.model = self._peft_model(base, scratch)

    def _inputs(self, generator):
        tokenizer = self.bundle.tokenizer()
        texts = ["the ice on the lake", "is it a train?"][: self.batch]
        ids = np.full((self.batch, LENGTH), self.manifest.pad_token_id)
        mask = np.zeros_like(ids)
        for row, encoded in enumerate(tokenizer.encode_batch(texts)):
            count = min(len(encoded.ids), LENGTH)
            ids[row, :count], mask[row, :count] = encoded.ids[:count], 1
        tokens = {"input_ids": ids, "attention_mask": mask, "token_type_ids": (np.arange(LENGTH) > 3) * mask}
        if self.manifest.model.task == "seq-cls":
            return tokens, generator.integers(0, len(self.manifest.model.labels), self.batch)
        if self.manifest.model.task == "qa":
            return tokens, np.sort(generator.integers(0, 4, (self.batch, 2)), 1)
        return tokens, np.where(mask == 1, ids, -100)

    def _peft_model(self, base: Path, scratch: Path) -> PeftModel:
        """Load an adapter file under the bundle's keys, as a user would."""
        adapter = scratch / "adapter"
        shutil.copytree(self.folder / "adapter", adapter)
        saved = load_file(adapter / "adapter_model.safetensors")
        changed = {name: torch.tensor(value) for name, value in self.weights.items()}
        assert changed.keys() <= saved.keys()
        assert all((changed[name] != saved[name]).any() for name in changed)
        whole = folded({name: value.numpy() for name, value in {**saved, **changed}.items()})
        tensors = {name: torch.tensor(value) for name, value in whole.items()}
        save_file(tensors, adapter / "adapter_model.safetensors", {"format": "pt"})
        task = MODEL_TASKS[self.manifest.model.task]
        more = {"num_labels": len(LABELS)} if task.kind.has_classes else {}
        factory = getattr(transformers, task.model_class)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = factory.from_pretrained(base, attn_implementation="eager", **more)
            return PeftModel.from_pretrained(model, adapter).eval()

    def losses(self, parameters=None) -> torch.Tensor:
        tokens = {name: torch.tensor(value) for name, value in self.tokens.items()}
        output = functional_call(self.model, parameters or {}, (), tokens)
        if self.manifest.model.task == "qa":
            logits = torch.stack([output.start_logits, output.end_logits], -1)
        else:
            logits = output.logits
        self.logits = logits.detach()
        labels = torch.tensor(self.labels)
        return MODEL_TASKS[self.manifest.model.task].losses(logits, labels, tokens["attention_mask"])

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """The model's trainable tensors under the bundle's keys."""
        by_key = {}
        for name, _ in self.model.named_parameters():
            key = name.replace(".default", "").replace(".modules_to_save", "").replace(".base_layer", "")
            if key in self.trained and ".original_module." not in name:
                by_key[key] = name
        assert by_key.keys() == self.trained
        return by_key

    @property
    def trained(self) -> set[str]:
        units = {parameter.name for unit in self.manifest.units for parameter in unit.parameters}
        return units | {parameter.name for parameter in self.manifest.head}

    def jvp(self, along: dict[str, np.ndarray]) -> np.ndarray:
        """The derivative of each example's loss along its own directions, one example at a time."""
        names, own = self.parameters, dict(self.model.named_parameters())
        found = np.zeros(self.batch, np.float32)
        for row in range(self.batch if along else 0):
            primal = {names[key]: own[names[key]].detach() for key in along}
            tangent = {names[key]: torch.tensor(value[row]) for key, value in along.items()}
            found[row] = jvp(self.losses, (primal,), (tangent,))[1][row].detach()
        return found

    def gradient(self, weight: np.ndarray) -> dict[str, np.ndarray]:
        names, own = self.parameters, dict(self.model.named_parameters())
        leaves = [own[names[key]].requires_grad_() for key in sorted(self.trained)]
        with torch.enable_grad():
            loss = (self.losses() * torch.tensor(weight)).sum()
            gradients = torch.autograd.grad(loss, leaves)
        return {key: gradient.numpy() for key, gradient in zip(sorted(self.trained), gradients, strict=True)}

    def stepper(self, runtime, count=1, name="onnx") -> Stepper:
        return Stepper(self.manifest, runtime, name, self.batch, LENGTH, count)

    def directions(
        self, first: int, count: int, *, end: int | None = None, head: bool = False, seed: int = 0
    ) -> dict[str, np.ndarray]:
        """Directions for everything at or after a segment, or up to another one, K outermost."""
        names = [segment.name for segment in self.manifest.segments]
        chosen = range(first, len(names) if end is None else end)
        units = [unit for unit in self.manifest.units if names.index(unit.segments[0]) in chosen]
        parameters = [*(p for unit in units for p in unit.parameters), *(self.manifest.head if head else ())]
        generator = np.random.default_rng(seed)
        rows = count * self.batch
        return {p.name: generator.standard_normal((rows, *p.shape), np.float32) for p in parameters}
