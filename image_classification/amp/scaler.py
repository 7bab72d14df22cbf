"""When the loss scale moves: one state machine, one row of numbers per rule, no tensors."""

import logging
import math
from dataclasses import dataclass

logger = logging.getLogger(__name__)

# float16 has nothing below 2^-24, so a smaller scale can only turn gradients into zeros; 2^127 is the last power of two
# of float32.
SMALLEST_SCALE = 2.0**-24
LARGEST_SCALE = 2.0**127


@dataclass(frozen=True)
class ScalerRule:
    """The default numbers of one published scaler.

    refill: when the count of tolerated bad steps starts again: "growth" only when the scale may grow, "clean" on every
        clean step, "reset" on every clean step and after every back-off (bad steps must be consecutive each time).
    clamp_growth: growth stops exactly at max_scale; otherwise it stops once max_scale is reached or passed.
    zero_bound_is_none: 0 as min_scale or max_scale means "no bound", as None does.
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    hysteresis: int = 1
    min_scale: float | None = None
    max_scale: float | None = None
    refill: str = "reset"
    clamp_growth: bool = True
    zero_bound_is_none: bool = False


RULES = {
    "torch": ScalerRule(),  # torch.cuda.amp.GradScaler, ColossalAI's TORCH mode
    "paddle": ScalerRule(),  # paddle.amp.GradScaler since Paddle 2.5
    "apex": ScalerRule(max_scale=2.0**24, zero_bound_is_none=True),  # apex.amp's LossScaler
    "naive": ScalerRule(  # ColossalAI 0.0.2's NAIVE mode, after Megatron-LM
        init_scale=2.0**32,
        growth_interval=1000,
        hysteresis=2,
        min_scale=1.0,
        max_scale=2.0**32,
        refill="growth",
        clamp_growth=False,
    ),
    # ColossalAI's NAIVE mode since 0.1.0
    "naive_gen1": ScalerRule(growth_interval=1000, hysteresis=2, refill="growth", zero_bound_is_none=True),
    # Megatron-LM's DynamicGradScaler
    "megatron": ScalerRule(init_scale=2.0**32, growth_interval=1000, hysteresis=2, min_scale=1.0, refill="growth"),
    # NeMo's GradScaler, apex's update_scale_hysteresis
    "nemo": ScalerRule(init_scale=2.0**32, growth_interval=1000, hysteresis=2, refill="clean"),
    # apex.fp16_utils' DynamicLossScaler
    "fp16_utils": ScalerRule(init_scale=2.0**32, growth_interval=1000, min_scale=1.0),
}

OPTION_NAMES = (
    "init_scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
    "hysteresis",
    "min_scale",
    "max_scale",
    "consecutive",
    "dynamic",
)

# Spellings of Paddle, ColossalAI, Apex, in this order.
ALIASES = {
    "init_loss_scaling": "init_scale",
    "incr_ratio": "growth_factor",
    "decr_ratio": "backoff_factor",
    "incr_every_n_steps": "growth_interval",
    "decr_every_n_nan_or_inf": "consecutive",
    "use_dynamic_loss_scaling": "dynamic",
    "initial_scale": "init_scale",
    "dynamic_grad_scale": "dynamic",
    "min_loss_scale": "min_scale",
    "max_loss_scale": "max_scale",
    "scale_factor": "growth_factor",
    "scale_window": "growth_interval",
}


class LossScaler:
    """A loss scale and the rule by which it moves; `scale` is never 0, infinite or NaN.

    Args:
        rule: a key of RULES.
        options: init_scale, growth_factor, backoff_factor, growth_interval (clean steps before growth), hysteresis or
            consecutive (bad steps before a back-off: two names of one number, the rule says how it is counted),
            min_scale, max_scale, dynamic (False: the scale never moves, bad steps are still to be skipped).

    Raises:
        ValueError: unknown rule or a number out of its range.
        TypeError: unknown option or a value of the wrong type.
    """

    def __init__(self, rule="torch", **options):
        if not isinstance(rule, str) or rule not in RULES:
            raise ValueError(f"unknown scaler rule {rule!r}; rules are {', '.join(RULES)}")
        row = RULES[rule]
        unknown = sorted(set(options) - set(OPTION_NAMES))
        if unknown:
            raise TypeError(f"unknown loss scaler option {unknown[0]!r}; options are {', '.join(OPTION_NAMES)}")
        if "hysteresis" in options and "consecutive" in options:
            raise ValueError("hysteresis and consecutive are two names of one option; give one of them")
        self.rule = rule
        self.dynamic = options.get("dynamic", True)
        if not isinstance(self.dynamic, bool):
            raise TypeError(f"dynamic must be True or False, not {self.dynamic!r}")
        self.growth_factor = _number("growth_factor", options.get("growth_factor", row.growth_factor))
        self.backoff_factor = _number("backoff_factor", options.get("backoff_factor", row.backoff_factor))
        self.growth_interval = _count("growth_interval", options.get("growth_interval", row.growth_interval))
        patience_name = "consecutive" if "consecutive" in options else "hysteresis"
        patience = options.get(patience_name, row.hysteresis)
        # Counting up to 0 bad steps is the same as counting up to 1 in the one original that allows 0.
        self.hysteresis = 1 if patience == 0 and rule == "naive_gen1" else _count(patience_name, patience)
        self.min_scale = _bound("min_scale", options.get("min_scale", row.min_scale), row.zero_bound_is_none)
        self.max_scale = _bound("max_scale", options.get("max_scale", row.max_scale), row.zero_bound_is_none)
        self._refill = row.refill
        self._clamp_growth = row.clamp_growth
        if self.growth_factor <= 1:
            raise ValueError(f"growth_factor must be greater than 1, not {self.growth_factor}")
        if not 0 < self.backoff_factor < 1:
            raise ValueError(f"backoff_factor must be between 0 and 1, not {self.backoff_factor}")

        if options.get("init_scale") is None:
            # A ceiling below the default start lowers it, as in Apex; a value that the user typed is never changed.
            self.scale = min(row.init_scale, self.max_scale or row.init_scale)
        else:
            self.scale = _number("init_scale", options["init_scale"])
        if not SMALLEST_SCALE <= self.scale <= LARGEST_SCALE:
            raise ValueError(f"init_scale must be between 2^-24 and 2^127, not {self.scale}")
        if self.dynamic:
            if self.min_scale is not None and self.min_scale > self.scale:
                raise ValueError(f"min_scale {self.min_scale} is greater than init_scale {self.scale}")
            if self.max_scale is not None and self.max_scale < self.scale:
                raise ValueError(f"max_scale {self.max_scale} is smaller than init_scale {self.scale}")
        self._good_steps = 0
        self._bad_steps = 0

    def update(self, found_inf):
        """Move the scale after one step; found_inf says whether any gradient was infinite or NaN."""
        if not self.dynamic:
            return
        if found_inf:
            self._good_steps = 0
            self._bad_steps += 1
            if self._bad_steps >= self.hysteresis:
                self.scale = max(self.scale * self.backoff_factor, self.min_scale or 0.0, SMALLEST_SCALE)
                if self._refill == "reset":
                    self._bad_steps = 0
            return
        self._good_steps += 1
        if self._refill != "growth":
            self._bad_steps = 0
        if self._good_steps >= self.growth_interval:
            self._good_steps = 0
            self._bad_steps = 0
            self._grow()

    def _grow(self):
        grown = self.scale * self.growth_factor
        if self.max_scale is not None:
            if self._clamp_growth:
                grown = min(grown, self.max_scale)
            elif self.scale >= self.max_scale:
                return
        if grown <= LARGEST_SCALE:
            self.scale = grown

    def state_dict(self):
        """Return everything that `update` reads and changes, as plain numbers."""
        return {
            "rule": self.rule,
            "scale": self.scale,
            "good_steps": self._good_steps,
            "bad_steps": self._bad_steps,
            "dynamic": self.dynamic,
        }

    def load_state_dict(self, state):
        """Continue where `state` was saved; the numbers of the rule stay those of this object.

        The state of another rule gives its scale only. A scale outside this rule's bounds is moved to the bound.
        A static scaler keeps its own scale. Each of these is logged.

        Raises:
            ValueError: the state has no usable scale.
        """
        try:
            rule, scale = state["rule"], float(state["scale"])
            good_steps, bad_steps = int(state["good_steps"]), int(state["bad_steps"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the state of a loss scaler: {error}") from None
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"the saved loss scale {scale} is not a finite number above 0")
        if not self.dynamic:
            if scale != self.scale:
                logger.warning("loss scale stays at the static %g; the saved one was %g", self.scale, scale)
            return
        bounded = max(scale, self.min_scale or 0.0, SMALLEST_SCALE)
        ceiling = LARGEST_SCALE if self.max_scale is None else self.max_scale
        if self._clamp_growth or self.max_scale is None:
            bounded = min(bounded, ceiling)
        if bounded != scale:
            logger.warning("saved loss scale %g is outside the bounds of rule %s: using %g", scale, self.rule, bounded)
        self.scale = bounded
        if rule != self.rule:
            logger.warning("loss scale %g taken from a %s scaler; the counts start anew", scale, rule)
            good_steps = bad_steps = 0
        self._good_steps, self._bad_steps = good_steps, bad_steps


def _number(name, value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {value!r}")
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be a finite number above 0, not {value}")
    return float(value)


def _count(name, value):
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    return value


def _bound(name, value, zero_is_none):
    if value is None or (zero_is_none and value == 0 and not isinstance(value, bool)):
        return None
    return _number(name, value)
