"""Read ports → decide → write ports."""

from shared.nightly.flows import night, recompute, settle

__all__ = ["night", "recompute", "settle"]
