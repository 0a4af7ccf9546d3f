"""The dual transform: a graph of values becomes a graph of values and tangents, in one pass over its nodes.

Nodes without a tangent among their arguments run plain; for the others a rule (`export.dual.rules`) gives the
tangent. `torch.func.jvp` is the oracle that tests every rule.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from export.dual import rules as _rules
from export.dual.rule import PAIRS, TANGENTS, Directions, Dual, total
from export.errors import MissingRuleError

__all__ = ["Directions", "Dual", "DualInterpreter"]

del _rules


class DualInterpreter(fx.Interpreter):
    """Runs a graph on duals; call `run` with one `Dual` per placeholder."""

    def __init__(
        self,
        graph: fx.GraphModule,
        directions: Directions,
        computed: Mapping[fx.Node, Any] | None = None,
        entering: Mapping[fx.Node, Tensor] | None = None,
    ) -> None:
        """Values that need no tangent are taken from `computed`, the `env` of another run over the same graph.

        Tangents in `entering` are added to those that the results of nodes have.
        """
        super().__init__(graph, garbage_collect_values=False)
        self.computed = computed or {}
        self.entering = entering or {}
        self.extra_traceback = False  # errors here are for users: one clear line
        self.directions = directions
        self._node: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self._node = n
        result = super().run_node(n)
        if n not in self.entering:
            return result
        return Dual(result.value, total(result.tangent, self.entering[n]), result.batched)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        duals = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Dual)]
        batched = any(dual.batched for dual in duals)
        if target is operator.getitem:
            return args[0][args[1]]
        if all(dual.tangent is None for dual in duals):
            if self._node is not None and self._node in self.computed:
                return _still(self.computed[self._node])
            return _wrap(target(*_values(args), **_values(kwargs)), None, batched)
        try:
            if target in PAIRS:
                result, tangents = PAIRS[target](self.directions, *args, **kwargs)
            elif target in TANGENTS:
                result = target(*_values(args), **_values(kwargs))
                tangents = TANGENTS[target](self.directions, result, *args, **kwargs)
            else:
                raise self._missing(target, "has no forward-AD rule")
        except NotImplementedError as error:
            raise self._missing(target, f"has a forward-AD rule that does not cover {error}") from None
        return _wrap(result, tangents, batched)

    def _missing(self, target: Any, what: str) -> MissingRuleError:
        assert self._node is not None
        stack = list((self._node.meta.get("nn_module_stack") or {}).values())
        module = f"{stack[-1][0]} ({stack[-1][1]})" if stack else "the task's loss"
        return MissingRuleError(
            f"the op {target} of {module} {what}; add one to a module of export/dual/rules "
            "(a function of a few lines under @tangent_of(op)), with its case in tests/export/dual"
        )


def _values(arguments: Any) -> Any:
    return tree_map(lambda leaf: leaf.value if isinstance(leaf, Dual) else leaf, arguments)


def _still(result: Any) -> Any:
    """Return the same values without tangents."""
    return tree_map(lambda dual: Dual(dual.value, None, dual.batched), result)


def _wrap(result: Any, tangents: Any, batched: bool) -> Any:
    if isinstance(tangents, Dual):
        return tangents
    if isinstance(result, Tensor):
        return Dual(result, _as(result, tangents), batched)
    tangents = tangents if tangents is not None else [None] * len(result)
    return [Dual(part, _as(part, slope), batched) for part, slope in zip(result, tangents, strict=True)]


def _as(result: Tensor, tangent: Tensor | None) -> Tensor | None:
    """Cast a tangent to its value's type: models in half precision mix types, and products want one."""
    return tangent if tangent is None or tangent.dtype == result.dtype else tangent.to(result.dtype)
