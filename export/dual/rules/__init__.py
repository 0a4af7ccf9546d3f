"""Register the rules, one module per family of ops, when this package is imported."""

from export.dual.rules import elementwise, indexing, normalization, products, reduction, shape

__all__ = ["elementwise", "indexing", "normalization", "products", "reduction", "shape"]
