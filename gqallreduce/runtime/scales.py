"""Scales that all ranks of a call share: the largest of their own, which they agree on before they encode."""

from __future__ import annotations

import numpy as np

from gqallreduce import _kernels
from gqallreduce.coding.integers import lawful
from gqallreduce.runtime.plan import Plan


def own(plan: Plan, running: _kernels.NativeOperation) -> np.ndarray:
    """This rank's, of each tensor, in the order `plan.scale_order`: float64, 0 if a value is not finite."""
    return running.own_scales(*plan.own_scale, plan.scale_order)


def take(plan: Plan, running: _kernels.NativeOperation, scales: np.ndarray):
    """Give an operation what ranks have agreed on, in that order; WireError for what is no scale. Returns the units of
    the codec that follow from them."""
    codec, scale = plan.codec, float(lawful(scales)[0])
    if len(scales) > 1:
        scale = np.empty(len(scales), np.float32)
        scale[plan.scale_order] = scales
    units = codec.unit_of_scale(scale)
    running.take_coder(codec.coder_of(units))
    return units
