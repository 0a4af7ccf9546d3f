"""One module per family of ops; importing this package registers every rule."""

from export.lower.onnx.rule import RULES
from export.lower.onnx.rules import attending, choice, elementwise, filled, indexing, products, reduction, shape

__all__ = ["RULES", "attending", "choice", "elementwise", "filled", "indexing", "products", "reduction", "shape"]
