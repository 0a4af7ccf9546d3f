"""How XNNPACK likes its arithmetic, one module per family of ops; importing this package registers all."""

from export.lower.executorch.formulation import FORMULATIONS
from export.lower.executorch.formulations import elementwise, masks, products, reduction, shape

__all__ = ["FORMULATIONS", "elementwise", "masks", "products", "reduction", "shape"]
