"""One module per family of ops; importing this package registers every rule."""

from export.dual.rules import elementwise, indexing, normalization, products, reduction, shape

__all__ = ["elementwise", "indexing", "normalization", "products", "reduction", "shape"]
