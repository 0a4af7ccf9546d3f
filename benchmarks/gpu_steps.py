"""One training step of a large model in each of the ways that gpu_memory.py compares, and what it allocates.

Every way sees the same weights: random ones, drawn layer by layer in the form in which they stay, 4-bit linear layers
in the TorchScript lowering's form (groups of 32, a float16 scale each), so that no model is ever held in floats.
A step gives its mean loss and the loss's derivative along one direction of LoRA and head together, whatever else it
computes, so that ways can be checked against each other.
"""

from __future__ import annotations

import gc
import re
import time
import warnings
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.func import functional_call, jvp
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.initialization import no_init_weights

from edge_client.measure import peak_above, resident
from export import ops
from export.capture import TaskForward, aten, capture
from export.lower.torchscript.weights import GROUP, Int4
from export.programs import DUAL, ENTER, PLAIN, Program, ProgramBuilder
from export.segments import split
from export.slots import Role, Slot, slot_of
from export.tasks import TASKS

TASK = TASKS["seq-cls"]
INPUTS = ("input_ids", "attention_mask")
FAKE = "fake"
"""Tensors without data: nothing is computed, every allocation is counted."""
_SHIFT = 1e-4
"""How far central difference moves along the direction."""

Step = Callable[[], tuple[Tensor, Tensor]]
"""Gives the mean loss and its derivative along the direction."""


@dataclass(frozen=True)
class Shape:
    """A model's published sizes and the batch that it is measured with."""

    config: transformers.PretrainedConfig
    targets: tuple[str, str]
    """Query and value."""
    batch: int
    length: int
    dtype: torch.dtype
    four_bit: bool


# --- the model -------------------------------------------------------------------------------------------------------


class FourBitLinear(nn.Module):
    """A frozen linear layer of random weights; none of its uses keeps the dequantized weight."""

    def __init__(self, of: nn.Linear, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        rows, columns = of.out_features, of.in_features
        shape = rows, columns // GROUP
        spread = columns**-0.5 / 4.6  # 4.6: the standard deviation of a random code
        self.pairs = nn.Buffer(torch.randint(-128, 128, (rows, columns // 2), dtype=torch.int8, device=device))
        self.scales = nn.Buffer(torch.full(shape, spread, dtype=torch.float16, device=device))
        self.bias = None if of.bias is None else _frozen(torch.zeros(rows, dtype=dtype, device=device))

    @property
    def weight(self) -> Int4:
        return Int4(self.pairs, self.scales)

    def forward(self, x: Tensor) -> Tensor:
        product: Any = _FourBitProduct.apply(x, self.pairs, self.scales)
        return product if self.bias is None else product + self.bias


class _FourBitProduct(torch.autograd.Function):
    """Differentiable by its activation in both modes; automatic rules would store every dequantized weight."""

    @staticmethod
    def forward(x: Tensor, pairs: Tensor, scales: Tensor) -> Tensor:
        return Int4(pairs, scales).product(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return Int4(*ctx.saved_tensors).transposed_product(gradient), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return Int4(*ctx.saved_tensors).product(tangent)


def _frozen(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value, requires_grad=False)


@unset_fake_temporarily()
def untouched(shape: Shape, attention: str, layers: int | None = None) -> PeftModel:
    """The adapted model with weights that nobody has written: such pages take no memory."""
    config = type(shape.config).from_dict(shape.config.to_dict())
    config.use_cache = False
    config.num_hidden_layers = layers or config.num_hidden_layers
    factory = transformers.AutoModelForSequenceClassification
    lora = LoraConfig(r=1, lora_alpha=1, target_modules=list(shape.targets), task_type=TASK.peft_type)
    with warnings.catch_warnings(), no_init_weights():
        warnings.simplefilter("ignore")
        model = factory.from_config(config, attn_implementation=attention, dtype=shape.dtype).requires_grad_(False)
        adapted = get_peft_model(model, lora, autocast_adapter_dtype=False)
    return adapted.eval()  # type: ignore[return-value]


def filled(model: PeftModel, shape: Shape, device: str) -> PeftModel:
    """Random weights on `device`: linear layers of blocks in 4 bit where asked, norms as they start."""
    for name, module in list(model.named_modules()):
        if (
            shape.four_bit
            and isinstance(module, nn.Linear)
            and re.search(r"\.layers?\.\d", name)
            and "lora_" not in name
        ):
            path, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(path), leaf, FourBitLinear(module, shape.dtype, device))
            continue
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            value = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            start = value.fill_(leaf == "weight") if value.dim() == 1 else value.normal_(0, value.shape[-1] ** -0.5)
            setattr(module, leaf, nn.Parameter(start, requires_grad=parameter.requires_grad))
        for leaf, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, leaf, buffer.to(device))
    return model


@dataclass
class Case:
    """A model, a batch and a direction."""

    shape: Shape
    model: PeftModel
    inputs: tuple[Tensor, ...]
    direction: dict[str, Tensor]
    device: str

    @classmethod
    def make(cls, shape: Shape, attention: str, device: str) -> Case:
        """The same numbers at every call, whatever the attention."""
        torch.manual_seed(0)
        model = filled(untouched(shape, attention), shape, device)
        ids = torch.randint(3, shape.config.vocab_size, (shape.batch, shape.length), device=device)
        labels = torch.randint(2, (shape.batch,), device=device)
        direction = {name: torch.randn_like(value) for name, value in _trained(model).items()}
        return cls(shape, model, (ids, torch.ones_like(ids), labels), direction, device)

    def losses(self, moved: dict[str, Tensor]) -> Tensor:
        """The mean loss with trainable tensors `moved`."""
        forward = TaskForward(self.model, TASK, INPUTS)
        found: Tensor = functional_call(forward, {f"model.{k}": v for k, v in moved.items()}, self.inputs)[0].mean()
        return found

    def along(self, gradients: dict[str, Tensor]) -> Tensor:
        """The derivative along the direction, of the tensors that have gradients."""
        products = [(gradient.float() * self.direction[name].float()).sum() for name, gradient in gradients.items()]
        return torch.stack(products).sum()


def _trained(model: PeftModel) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


# --- eager PyTorch ---------------------------------------------------------------------------------------------------


def backprop(shape: Shape, device: str) -> tuple[Step, int]:
    """The gradient of LoRA and head in reverse mode, all activations kept."""
    case = Case.make(shape, "sdpa", device)

    def step() -> tuple[Tensor, Tensor]:
        leaves = {name: value.requires_grad_() for name, value in _trained(case.model).items()}
        loss = case.losses(leaves)
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        return loss.detach(), case.along(dict(zip(leaves, gradients, strict=True)))

    return step, bytes_of([*case.model.parameters(), *case.model.buffers()])


def central(shape: Shape, device: str) -> tuple[Step, int]:
    """Two forward passes, a little ahead and behind."""
    case = Case.make(shape, "sdpa", device)

    @torch.no_grad()
    def step() -> tuple[Tensor, Tensor]:
        ahead, behind = (
            case.losses(
                {name: value + sign * _SHIFT * case.direction[name] for name, value in _trained(case.model).items()}
            )
            for sign in (1, -1)
        )
        return (ahead + behind) / 2, (ahead - behind) / (2 * _SHIFT)

    return step, bytes_of([*case.model.parameters(), *case.model.buffers()])


def func_jvp(shape: Shape, device: str) -> tuple[Step, int]:
    """PyTorch's forward mode, which fused attention does not have."""
    case = Case.make(shape, "eager", device)
    for module in case.model.modules():
        if isinstance(module, nn.LayerNorm):
            module.forward = partial(_wide_norm, module)

    @torch.no_grad()
    def step() -> tuple[Tensor, Tensor]:
        found: Any = jvp(case.losses, (_trained(case.model),), (case.direction,))
        return found

    return step, bytes_of([*case.model.parameters(), *case.model.buffers()])


def _wide_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """In float32: the tangent of a norm in bfloat16 comes out in float32 on a GPU, which the next product refuses."""
    weight, bias = norm.weight.float(), norm.bias.float()
    return functional.layer_norm(x.float(), norm.normalized_shape, weight, bias, norm.eps).to(x.dtype)


# --- our dual programs -----------------------------------------------------------------------------------------------


def dual(shape: Shape, device: str) -> tuple[Step, int]:
    """A client that holds all units."""
    return _dual(shape, device, first=0)


def share(shape: Shape, device: str) -> tuple[Step, int]:
    """A client that holds the units of the second half: blocks before it run plain."""
    return _dual(shape, device, first=shape.config.num_hidden_layers // 2)


def suffix(shape: Shape, device: str) -> tuple[Step, int]:
    """The same client with the hidden states at its cut kept, and the weights before it released."""
    return _dual(shape, device, first=shape.config.num_hidden_layers // 2, released=True)


def _dual(shape: Shape, device: str, first: int, *, released: bool = False) -> tuple[Step, int]:
    case = Case.make(shape, "eager", device)
    chain = _chain(case, first)
    state: dict[str, Tensor] = {}
    if released:
        with torch.no_grad():
            for link in chain[: first + 1]:
                state = link.run(state)
        del chain[: first + 1]
    held = [tensor for link in chain for tensor in link.tensors()]
    direction = {name: v for link in chain for name in link.moving() for v in [case.direction[name]]}
    head = {name: v for name, v in case.direction.items() if ".modules_to_save." in name}
    del case

    @torch.no_grad()
    def step() -> tuple[Tensor, Tensor]:
        values = dict(state)
        for link in chain:
            values = link.run(values, direction)
        exact = [(values["g:" + name].float() * v.float()).sum() for name, v in head.items()]
        return values["loss"].mean(), values["jvp"].float().mean() + torch.stack(exact).sum()

    return step, bytes_of(held)


@dataclass
class Link:
    """A program of the chain with the weights of its own block."""

    program: Program
    values: dict[Slot, Any]
    names: dict[str, str]
    """Trainable tensor in the traced block -> in this one."""
    device: str

    def run(self, state: dict[str, Tensor], direction: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        values = [self._value(slot_of(node), state, direction or {}) for node in self.program.placeholders]
        results = _OnDevice(self.program.graph, self.device).run(*values)
        return dict(zip((self._named(output) for output in self.program.outputs), results, strict=True))

    def _value(self, slot: Slot, state: dict[str, Tensor], direction: dict[str, Tensor]) -> Any:
        if slot.role is Role.DIRECTION:  # a client draws one for each example; here all take the same
            v = direction[self.names[slot.name]]
            return v.expand(len(self.values[_WEIGHTS]), *v.shape).contiguous()
        return state[slot.name] if slot.role in (Role.STATE, Role.TANGENT) else self.values[slot]

    def _named(self, output: str) -> str:
        return "g:" + self.names[output[2:]] if output.startswith("g:") else output

    def moving(self) -> list[str]:
        slots = [slot_of(node) for node in self.program.placeholders]
        return [self.names[slot.name] for slot in slots if slot.role is Role.DIRECTION]

    def tensors(self) -> list[Tensor]:
        found = [value.tensors() if isinstance(value, Int4) else [value] for value in self.values.values()]
        return [tensor for tensors in found for tensor in tensors]


_WEIGHTS = Slot(Role.EXAMPLE_WEIGHT, "example_weight")
_TRACED = 1
"""The block whose programs all blocks run."""


def _chain(case: Case, first: int) -> list[Link]:
    """Each block's weights with the program that all blocks share."""
    kinds = [PLAIN if i < first else ENTER if i == first else DUAL for i in range(case.shape.config.num_hidden_layers)]
    traced = _programs(case.shape, kinds)
    known = {name: tensor.to(case.device) for name, tensor in traced.constants.items()}
    known |= dict(zip((*INPUTS, "labels"), case.inputs, strict=True))
    known[_WEIGHTS.name] = torch.full((case.shape.batch,), 1 / case.shape.batch, device=case.device)
    return [
        _link(case, traced.embed, known),
        *(_link(case, traced.block[kind], known, i) for i, kind in enumerate(kinds)),
        _link(case, traced.head, known),
    ]


@dataclass
class _Traced:
    embed: Program
    block: dict[str, Program]
    head: Program
    constants: dict[str, Tensor]


@unset_fake_temporarily()
def _programs(shape: Shape, kinds: Iterable[str]) -> _Traced:
    """The export's programs for a model of two blocks of the same shape: blocks are alike, so one is traced."""
    template = untouched(shape, "eager", layers=2)
    roles = {True: Role.HEAD, False: Role.ADAPTER}
    slots = {
        parameter.data_ptr(): Slot(roles[".modules_to_save." in name], name)
        for name, parameter in template.named_parameters()
        if parameter.requires_grad
    }
    examples = {name: torch.ones(shape.batch, shape.length, dtype=torch.int64) for name in INPUTS}
    captured = capture(template, TASK, {**examples, "labels": torch.zeros(shape.batch, dtype=torch.int64)}, slots)
    embed, _, block, head = split(captured, 2, range(2))
    builder = ProgramBuilder()
    return _Traced(
        builder.build(embed, PLAIN, 1),
        {kind: builder.build(block, kind, 1) for kind in dict.fromkeys(kinds)},
        builder.build(head, DUAL, 1),
        {name: tensor for name, tensor in captured.stored.items() if name.startswith("constant.")},
    )


def _link(case: Case, program: Program, known: dict[str, Tensor], block: int = _TRACED) -> Link:
    names: dict[str, str] = {}
    values: dict[Slot, Any] = {_WEIGHTS: known[_WEIGHTS.name]}
    for slot in (slot_of(node) for node in program.placeholders):
        if slot.role in (Role.STATE, Role.TANGENT):
            continue
        names[slot.name] = re.sub(rf"(\.layers?\.){_TRACED}\.", rf"\g<1>{block}.", slot.name)
        if slot.role is not Role.DIRECTION:
            values[slot] = known[slot.name] if slot.name in known else _weight(case.model, names[slot.name])
    return Link(program, values, names, case.device)


def _weight(model: nn.Module, name: str) -> Any:
    path, _, leaf = name.rpartition(".")
    value = getattr(model.get_submodule(path), leaf)
    return value.detach() if isinstance(value, Tensor) else value


class _OnDevice(fx.Interpreter):
    """Runs a program with 4-bit weights, on one device, wherever it was traced; values go when nobody needs them."""

    def __init__(self, graph: fx.GraphModule, device: str) -> None:
        super().__init__(graph)
        self.device = torch.device(device)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if target is ops.linear and isinstance(args[1], Int4):
            return args[1].product(args[0])
        if target is aten.to.device:
            args = (args[0], self.device, *args[2:])
        moved = {"device": self.device} if "device" in kwargs else {}
        return super().call_function(target, args, {**kwargs, **moved})


STEPS: dict[str, Callable[[Shape, str], tuple[Step, int]]] = {
    "backprop": backprop, "central": central, "func.jvp": func_jvp, "dual": dual, "share": share, "suffix": suffix,
}  # fmt: skip


# --- memory ----------------------------------------------------------------------------------------------------------


def bytes_of(tensors: Iterable[Tensor]) -> int:
    storages = {id(storage): storage for storage in (tensor.untyped_storage() for tensor in tensors)}
    return sum(storage.nbytes() for storage in storages.values())


class Counter(TorchDispatchMode):
    """The bytes of all tensors that were made while it is active, and their highest."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, weakref.ref[Any]] = {}
        self.now = self.highest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) == "aten._local_scalar_dense.default" and isinstance(args[0], FakeTensor):
            return True  # a model asks whether its mask is all ones, and leaves it out
        given = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and id(leaf.untyped_storage()) not in given:
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._alive:
            return

        def gone(_: Any) -> None:
            del self._alive[key]
            self.now -= size

        self._alive[key] = weakref.ref(storage, gone)
        self.now += size
        self.highest = max(self.highest, self.now)


@dataclass
class Memory:
    """What a step takes, in bytes and seconds; None where a device has no such figure."""

    above: int
    """The highest above what is held between steps."""
    total: int
    reserved: int | None = None
    seconds: float | None = None
    loss: float | None = None


def measure(shape: Shape, method: str, device: str) -> tuple[int, Memory]:
    """The bytes of the weights, and what a step takes with them."""
    if device == FAKE:
        return _measure_fake(shape, method)
    step, weights = STEPS[method](shape, device)
    gc.collect()
    return weights, _on_cuda(step) if device.startswith("cuda") else _on_cpu(step, weights)


def _measure_fake(shape: Shape, method: str) -> tuple[int, Memory]:
    """On the CPU a fused attention is chosen; torch.func.jvp has none, and its norms lose a fake tensor's device."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        step, weights = STEPS[method](shape, "meta" if method == "func.jvp" else "cpu")
        gc.collect()
        highest = counted(step)
    return weights, Memory(highest, weights + highest)


def counted(step: Step) -> int:
    """The most bytes that tensors of a step take at once."""
    with Counter() as counter:
        step()
    return counter.highest


class _Timed:
    """A step that notes its seconds and its loss; asking for the loss waits for the device."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self.seconds = self.loss = 0.0

    def __call__(self) -> None:
        started = time.monotonic()
        self.loss = float(self._step()[0])
        self.seconds = time.monotonic() - started


def _on_cpu(step: Step, weights: int) -> Memory:
    timed = _Timed(step)
    above = peak_above(resident("RssAnon"), timed, rounds=1)
    return Memory(above, weights + above, None, timed.seconds, timed.loss)


def _on_cuda(step: Step) -> Memory:
    timed = _Timed(step)
    torch.cuda.empty_cache()
    timed()  # libraries take their work space once
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    timed()
    highest = torch.cuda.max_memory_allocated()
    return Memory(highest - before, highest, torch.cuda.max_memory_reserved(), timed.seconds, timed.loss)
