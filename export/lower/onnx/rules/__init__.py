"""Register the rules, one module per family of ops, when this package is imported."""

from export.lower.onnx.rule import RULES
from export.lower.onnx.rules import attending, choice, elementwise, filled, indexing, products, reduction, shape

__all__ = ["RULES", "attending", "choice", "elementwise", "filled", "indexing", "products", "reduction", "shape"]
