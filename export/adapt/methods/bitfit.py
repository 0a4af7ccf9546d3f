"""BitFit: the model's own biases (Ben Zaken et al., 2022)."""

from __future__ import annotations

from export.adapt.adapter import Adapter, carrier

ADAPTER = Adapter(carrier("all"), lambda projections: projections.query, trains=lambda name: name.endswith("bias"))
