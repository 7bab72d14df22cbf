"""Number formats as objects: plain float32, automatic mixed precision, Apex's O0 to O3, naive half precision.

A trainer asks a Precision (`build_precision`); a script of one's own calls `initialize` and `scale_loss`. The folder
depends on paddle and on the half_cpu folder beside it, on nothing else of the project.
"""

from .api import (
    AMP_TYPE,
    convert_to_amp,
    disable_casts,
    initialize,
    load_state_dict,
    master_params,
    scale_loss,
    state_dict,
)
from .build import build_precision
from .functions import FunctionCasts
from .options import MODES, validate_options
from .precision import Precision, Reduction, StepResult
from .scaler import LossScaler
from .support import check_supported, support_table, supported

__all__ = [
    "AMP_TYPE",
    "MODES",
    "FunctionCasts",
    "LossScaler",
    "Precision",
    "Reduction",
    "StepResult",
    "build_precision",
    "check_supported",
    "convert_to_amp",
    "disable_casts",
    "initialize",
    "load_state_dict",
    "master_params",
    "scale_loss",
    "state_dict",
    "support_table",
    "supported",
    "validate_options",
]
