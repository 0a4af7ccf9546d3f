"""Register formulations of arithmetic for XNNPACK, one module per family of ops, when this package is imported."""

from export.lower.executorch.formulation import FORMULATIONS
from export.lower.executorch.formulations import elementwise, masks, products, reduction, shape

__all__ = ["FORMULATIONS", "elementwise", "masks", "products", "reduction", "shape"]
