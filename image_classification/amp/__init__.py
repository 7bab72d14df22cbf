"""Number formats as objects: plain float32, automatic mixed precision, Apex's O0 to O3, naive half precision."""

from .build import build_precision
from .functions import FunctionCasts
from .options import MODES, validate_options
from .precision import Precision, Reduction, StepResult
from .scaler import LossScaler

__all__ = [
    "MODES",
    "FunctionCasts",
    "LossScaler",
    "Precision",
    "Reduction",
    "StepResult",
    "build_precision",
    "validate_options",
]
