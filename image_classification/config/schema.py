"""Every key of a configuration with its type, default and meaning.

Names are PaddleViT's wherever it has the key. A default that is ``None`` is worked out from other keys or switches the
feature off; the help text says which. ``option(..., recipe=False)`` belongs to one invocation: which weights, which
folder, which machine. The effective configuration that a run leaves to the next one does not hold it.
"""

import dataclasses
from collections.abc import Mapping

from .fields import derived, mapping, option, section

# What other packages have by these names, which this one does not import because they need Paddle, or are slow to
# import; tests compare them.
PRECISION_MODES = ("fp32", "auto", "O0", "O1", "O2", "O3", "naive")
FLOAT32_MODES = ("fp32", "O0")  # those that have no half format
HALF_DTYPES = ("float16", "bfloat16")
HALF_NAMES = {"half": "float16", "fp16": "float16", "bf16": "bfloat16"} | {name: name for name in HALF_DTYPES}
BALANCED = "balanced"  # the one word that TRAIN.CLASS_WEIGHTS may be
DISTILLATIONS = ("none", "soft", "hard")
DATASETS = ("digits", "imagenet2012", "imagenet_tfrecord", "cifar10", "cifar100", "caltech101", "folder", "list",
            "tar_shards", "synthetic")  # fmt: skip
WITHOUT_FOLDER = ("digits", "synthetic")  # data sets that read nothing from DATA.DATA_PATH
UNCOUNTED = ("imagenet_tfrecord",)  # data sets whose labels only reading the records would tell
OPTIMIZERS = ("AdamW", "Adam", "SGD", "Momentum", "RMSProp", "LAMB", "LARS", "Lion")
SCHEDULES = ("warmupcosine", "cosine", "linear", "polynomial", "step", "multistep", "apexstep", "constant")
MOST_PROCESSES = 1024  # of a kind on one host; a slip of the keyboard would start as many as it says


@dataclasses.dataclass(frozen=True)
class Data:
    """Images: where they are, how they are read, cut and normalised."""

    DATASET: str = option("imagenet2012", "the data set; docs/data.md explains them", choices=DATASETS)
    DATA_PATH: str = option("/dataset/imagenet/", "folder of the data set")
    BATCH_SIZE: int = option(256, "images per process and step in training, beside -eval in evaluation", minimum=1)
    BATCH_SIZE_EVAL: int | None = option(None, "images per process and step in evaluation; none: BATCH_SIZE", minimum=1)
    IMAGE_SIZE: int = option(224, "side of the square images that the model sees, in pixels", minimum=1)
    IMAGE_CHANNELS: int = option(3, "colour channels of the images", minimum=1)
    DOWNLOAD: bool = option(False, "fetch a public data set (cifar10, cifar100, caltech101) into DATA_PATH first")
    TFRECORD_FIRST_LABEL: int = option(1, "imagenet_tfrecord: number of the first class in the files", minimum=0)
    CALTECH_BACKGROUND: bool = option(False, "caltech101: BACKGROUND_Google is a class, too")
    SYNTHETIC_IMAGES: int = option(1024, "synthetic: images of an epoch", minimum=1)
    NUM_WORKERS: int | None = option(
        None, "worker processes of each loader, 0: the training process; none: by cores, 0 for small images",
        minimum=0, maximum=MOST_PROCESSES,
    )  # fmt: skip
    LOADER: str = option("workers", "what decodes: worker processes, or DALI (an extra)", choices=("workers", "dali"))
    DALI_GPU: bool = option(False, "DALI decodes on this process's GPU instead of the CPU")
    PREFETCH: int = option(2, "batches that the workers prepare ahead", minimum=1, maximum=MOST_PROCESSES)
    WORKER_TIMEOUT: float = option(120.0, "seconds without any new image after which a worker counts as hung", above=0)
    SKIP_CORRUPT: bool = option(False, "leave images out that cannot be read or decoded, with a count, and go on")
    IMAGENET_MEAN: tuple[float, ...] = option((0.5, 0.5, 0.5), "mean of each channel, 0-1", minimum=0, maximum=1)
    IMAGENET_STD: tuple[float, ...] = option((0.5, 0.5, 0.5), "deviation of each channel, 0-1", above=0, maximum=1)
    RESIZE_LIBRARY: str = option("cv2", "pil: torchvision, else PaddleClas", choices=("cv2", "pil", "paddleclas_pil"))
    EXIF_ORIENTATION: bool = option(False, "turn photographs upright by their EXIF entry, as PaddleClas does")
    SCALED_DECODE: bool = option(True, "training with cv2: decode a JPEG at 1/2, 1/4, 1/8 where the crop allows it")
    INTERPOLATION: str = option("bilinear", "way of scaling", choices=("nearest", "bilinear", "bicubic", "lanczos"))
    TRAIN_CROP: str = option(
        "random_resized",
        "training: random_resized, simple (DeiT III), pad (CIFAR) or none",
        choices=("random_resized", "simple", "pad", "none"),
    )
    CROP_SCALE: tuple[float, float] = option(
        (0.08, 1.0), "random_resized: share of the image's area, from and to", above=0, maximum=1, rising=True
    )
    CROP_RATIO: tuple[float, float] = option(
        (0.75, 4 / 3), "random_resized: width / height of the crop, from and to", above=0, rising=True
    )
    CROP_PADDING: int = option(4, "pad: black pixels on each side before the random crop", minimum=0)
    BALANCED: bool = option(False, "training: draw each class equally often, with replacement")
    HFLIP: float = option(0.5, "training: probability of a horizontal flip", minimum=0, maximum=1)
    CROP_PCT: float = option(
        0.875, "evaluation: share of the resized image's side that is kept; above 1: black around", above=0, maximum=2
    )
    KEEP_ASPECT: bool = option(True, "evaluation: scale by the short side; False: to a square, as ColossalAI does")
    PREPROCESSING: str = option(
        "weights",
        "resize, crop, mean and deviation of published weights that -pretrained names: theirs, or this section's",
        choices=("weights", "config"),
    )
    PREPROCESSING_KEPT: tuple[str, ...] = option(
        (), "keys of this section that stay although the weights have theirs; -opts adds those that it sets"
    )


@dataclasses.dataclass(frozen=True)
class Model:
    """Architecture: NAME plus the lower-case arguments of the model folder's ``build_model``, spelt in upper case."""

    NAME: str = option("", "name of the variant; the YAML's file name")
    NUM_CLASSES: int = option(
        1000, "classes of the last layer; those of the data, unless it is set in the same place as the data", minimum=1
    )
    PRETRAINED: str | None = option(
        None,
        "weights to start from or to evaluate: file, a run's folder, URL, hf-hub:owner/name or an id: paddle/resnet50",
        recipe=False,
    )
    RESUME: str | None = option(None, "checkpoint, with or without .pdparams, or run's folder to go on", recipe=False)
    TEACHER: str | None = option(None, "weights of the teacher of TRAIN.DISTILLATION_TYPE, as PRETRAINED takes them")
    TEACHER_CFG: str | None = option(
        None, "the teacher's variant or YAML; none: by the weights' id, run's folder or file's name"
    )
    TEACHER_FP32: bool = option(False, "the teacher computes in float32 instead of the student's precision")
    CLASS_NAMES: tuple[str, ...] = option((), "name of each class; those of the data, where they have names")
    CLASSES_GIVEN: bool = derived(True, "whether NUM_CLASSES was set for the very data that were named")
    ARGUMENTS: Mapping = mapping("arguments of build_model that the YAML or the command line set")


@dataclasses.dataclass(frozen=True)
class LRScheduler:
    """Shape of the learning rate after the warm-up."""

    NAME: str = option("warmupcosine", "shape; cosine: warmupcosine; apexstep: Apex's rule", choices=SCHEDULES)
    MILESTONES: tuple[int, ...] = option((30, 60, 90), "multistep: epochs after which the rate is cut", minimum=1)
    DECAY_EPOCHS: float = option(30.0, "step: epochs between two decays", above=0)
    DECAY_RATE: float = option(0.1, "step, multistep: factor of each decay", above=0, maximum=1)
    POWER: float = option(1.0, "polynomial: exponent of the share that is left; 1: linear", above=0)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """Rule that turns gradients into updates."""

    NAME: str = option("AdamW", "the rule; SGD has no momentum", choices=OPTIMIZERS)
    EPS: float = option(1e-8, "AdamW, Adam, LAMB: added to the denominator; RMSProp: under its root", minimum=0)
    BETAS: tuple[float, float] = option(
        (0.9, 0.999), "AdamW, Adam, LAMB, Lion: decay of the two averages",
        minimum=0, below=1,
    )  # fmt: skip
    RHO: float = option(0.9, "RMSProp: decay of the average of squares", minimum=0, below=1)
    MOMENTUM: float = option(0.9, "Momentum, RMSProp, LARS: decay of the velocity", minimum=0, below=1)
    NESTEROV: bool = option(False, "Momentum: Nesterov's form")
    DECAY_ALL: bool = option(False, "weight decay for biases, norms and what the model exempts, too")
    LAYER_DECAY: float = option(1.0, "learning-rate factor from each layer to the one before it", above=0, maximum=1)
    BIAS_CORRECTION: bool = option(True, "LAMB: correct the averages for their start at zero")
    TRUST_CLIP: float | None = option(None, "LAMB: largest trust ratio; none: unlimited", above=0)
    TRUST_COEFFICIENT: float = option(0.001, "LARS: factor of the trust ratio", above=0)
    ALWAYS_ADAPT: bool = option(False, "LAMB, LARS: trust ratio also for tensors without weight decay")


@dataclasses.dataclass(frozen=True)
class Train:
    """Recipe: epochs, learning rate, regularisation, optimizer."""

    NUM_EPOCHS: int = option(300, "epochs of the whole run", minimum=1)
    LAST_EPOCH: int = option(
        0, "epochs, also of the schedule, already done where a run starts without a checkpoint", minimum=0, recipe=False
    )
    WARMUP_EPOCHS: float = option(3.0, "epochs of linear warm-up", minimum=0, maximum=1_000_000)
    WARMUP_START_LR: float = option(1e-6, "learning rate at the first step of the warm-up", minimum=0)
    BASE_LR: float = option(0.003, "learning rate after the warm-up", minimum=0)
    END_LR: float = option(0.0, "learning rate at which the decay ends, one step behind the last", minimum=0)
    LINEAR_SCALED_LR: int | None = option(None, "global batch size the rates are meant for; none: its own", minimum=1)
    WEIGHT_DECAY: float = option(0.05, "weight decay; biases, norms and what the model names have none", minimum=0)
    GRAD_CLIP: float | None = option(None, "largest global gradient norm; none: no clipping", above=0)
    ACCUM_ITER: int = option(1, "micro-batches whose gradients make one step", minimum=1)
    SMOOTHING: float = option(0.0, "label smoothing", minimum=0, below=1)
    COLOR_JITTER: tuple[float, ...] = option((0.0,), "brightness, contrast, saturation[, hue <= 0.5]", minimum=0)
    AUTO_AUGMENT: bool = option(False, "AutoAugment; at most one of AUTO_, RAND_, TRIVIAL_ and THREE_AUGMENT")
    AUTO_AUGMENT_POLICY: str = option("imagenet", "learned policy of AUTO_AUGMENT", choices=("imagenet", "cifar10"))
    RAND_AUGMENT: bool = option(False, "RandAugment")
    RAND_AUGMENT_LAYERS: int = option(2, "RandAugment: operations on each image", minimum=1)
    RAND_AUGMENT_MAGNITUDE: int = option(9, "RandAugment: strength", minimum=0, maximum=30)
    RAND_AUGMENT_PROB: float = option(1.0, "RandAugment: probability of each operation", minimum=0, maximum=1)
    TRIVIAL_AUGMENT: bool = option(False, "TrivialAugment")
    THREE_AUGMENT: bool = option(False, "DeiT III's 3-Augment: grey, solarize or blur")
    RANDOM_ERASE_PROB: float = option(0.0, "random erasing: probability", minimum=0, maximum=1)
    RANDOM_ERASE_MODE: str = option(
        "pixel", "random erasing: what fills the box", choices=("pixel", "colour", "random", "mean")
    )
    REPEATED_AUG: int = option(1, "differently augmented copies of each image that stand side by side", minimum=1)
    MIXUP_ALPHA: float = option(0.0, "Mixup: lambda ~ Beta(alpha, alpha), one a batch; 0: off", minimum=0)
    CUTMIX_ALPHA: float = option(0.0, "CutMix: lambda ~ Beta(alpha, alpha), one a batch; 0: off", minimum=0)
    CUTMIX_MINMAX: tuple[float, float] | None = option(
        None, "CutMix: shares of the image's sides between which the box's are drawn, instead of by alpha; none: off",
        minimum=0, maximum=1, rising=True,
    )  # fmt: skip
    MIXUP_PROB: float = option(1.0, "Mixup, CutMix: share of the batches that are mixed", minimum=0, maximum=1)
    MIXUP_SWITCH_PROB: float = option(0.5, "share of CutMix where both are on", minimum=0, maximum=1)
    FREEZE: tuple[str, ...] = option((), "patterns of parameters that stay as they are: layer1.*; !head*: all but it")
    CLASS_WEIGHTS: tuple[float, ...] | str | None = option(
        None, "factor of each class in the loss; balanced: by its share of training images; none: all alike", above=0
    )
    FOCAL_GAMMA: float = option(0.0, "focal loss: exponent of (1 - p); 0: cross entropy", minimum=0)
    DISTILLATION_TYPE: str = option(
        "none", "what is learnt from MODEL.TEACHER: soft, its probabilities; hard, its class", choices=DISTILLATIONS
    )
    DISTILLATION_ALPHA: float = option(0.5, "share of the teacher in the loss", minimum=0, maximum=1)
    DISTILLATION_TAU: float = option(1.0, "soft: temperature of both", above=0)
    MAX_SKIPPED_STEPS: int = option(50, "non-finite steps in a row after which the run stops", minimum=1)
    MODEL_EMA: bool = option(False, "keep an exponential moving average of the weights and evaluate it")
    MODEL_EMA_DECAY: float = option(0.99996, "decay of the moving average", minimum=0, below=1)
    PROFILE_STEP: int | None = option(
        None, "first of ten steps that the profiler records, then the run ends; none: off", minimum=0, recipe=False
    )
    HOOKS: tuple[str, ...] = option((), "further hooks, each as module:Class")
    LR_SCHEDULER: LRScheduler = section(LRScheduler)
    OPTIMIZER: Optimizer = section(Optimizer)


@dataclasses.dataclass(frozen=True)
class Amp:
    """Precision: mode and number format; every other key of this section is an option of the mode."""

    MODE: str = option("fp32", "precision mode", choices=PRECISION_MODES, meant=dict.fromkeys(HALF_NAMES, "AMP.DTYPE"))
    DTYPE: str | None = option(
        None, "half format; none: the mode's own, with auto on a CPU bfloat16", choices=HALF_DTYPES, meant=HALF_NAMES
    )
    OPTIONS: Mapping = mapping("options of the mode, lower case")


@dataclasses.dataclass(frozen=True)
class Parallel:
    """How the processes share the work; the product must be the number of processes."""

    DATA: int | None = option(
        None, "data-parallel replicas; none: whatever the other three leave", minimum=1, recipe=False
    )
    TENSOR: int = option(1, "processes that share each layer", minimum=1, recipe=False)
    PIPELINE: int = option(1, "processes that share the sequence of layers", minimum=1, recipe=False)
    SHARDING: int = option(1, "processes that share the optimizer's state (ZeRO stage 1)", minimum=1, recipe=False)
    SYNC_BN: bool = option(False, "batch norms use the statistics of all data-parallel processes")
    LAUNCHER: str = option(
        "auto",
        "what started the processes",
        choices=("auto", "paddle", "slurm", "openmpi", "torchrun", "none"),
        recipe=False,
    )
    RANK: int | None = option(
        None, "rank of this process, set by hand together with WORLD_SIZE, HOST and PORT", minimum=0, recipe=False
    )
    WORLD_SIZE: int | None = option(None, "number of processes, set by hand", minimum=1, recipe=False)
    LOCAL_RANK: int | None = option(
        None, "rank among the processes of this host, where the launcher says it no other way", minimum=0, recipe=False
    )
    HOST: str = option("127.0.0.1", "address of rank 0's host, set by hand", recipe=False)
    PORT: int = option(29500, "free port on rank 0's host, set by hand", minimum=1, maximum=65535, recipe=False)
    TIMEOUT: float | None = option(
        None,
        "seconds a process may keep the others waiting before the run ends; none: 300, or WORKER_TIMEOUT + 180",
        above=0,
        recipe=False,
    )


@dataclasses.dataclass(frozen=True)
class Runtime:
    """How this run differs from the recipe as it is written."""

    SMOKE: bool = option(False, "the small version of a recipe: the SMOKE section of its YAML overrides the rest")


@dataclasses.dataclass(frozen=True)
class Config:
    """A whole run."""

    DATA: Data = section(Data)
    MODEL: Model = section(Model)
    TRAIN: Train = section(Train)
    AMP: Amp = section(Amp)
    PARALLEL: Parallel = section(Parallel)
    RUNTIME: Runtime = section(Runtime)
    NOTES: tuple[str, ...] = derived((), "what the log says of another project's file and of keys given twice")
    SAVE: str = option("./output", "folder in which each run makes its own folder")
    OUTPUT: str | None = option(None, "folder of this very run instead of a new one below SAVE", recipe=False)
    SAVE_FREQ: int = option(1, "epochs between two checkpoints", minimum=1)
    SAVE_STEPS: int | None = option(None, "steps between two checkpoints within an epoch; none: off", minimum=1)
    KEEP: int = option(3, "checkpoints of past epochs that are kept, besides best and latest", minimum=1)
    REPORT_FREQ: int = option(20, "steps between two log lines", minimum=1)
    VALIDATE_FREQ: int = option(1, "epochs between two evaluations", minimum=1)
    SEED: int = option(0, "seed of weights, data order, augmentation and dropout", minimum=0)
    DETERMINISTIC: bool = option(False, "two runs give the same bits, where the libraries allow it")
    EVAL: bool = option(False, "evaluate only", recipe=False)
    EVAL_FP32: bool = option(
        False, "evaluate only, in mixed precision: in float32 too, and state the difference", recipe=False
    )
    DRY_RUN: bool = option(False, "build everything, run one batch, write nothing", recipe=False)
    NGPUS: int = option(
        -1, "processes that main_multi_gpu.py starts; -1: one per visible device", maximum=MOST_PROCESSES, recipe=False
    )
    DEVICE: str = option(
        "auto", "auto, cpu, gpu, xpu or a plug-in's device, such as npu; :N names one of several", recipe=False
    )
