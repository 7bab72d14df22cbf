"""What a word of a command line that is no option was meant to be."""

from .merge import keys_of
from .schema import HALF_NAMES, PRECISION_MODES

# An option of timm or torchrun: the same here.
OF_OTHERS = {
    "nproc_per_node": "-ngpus",
    "model": "-cfg",
    "data": "-data_path",
    "checkpoint": "-pretrained",
    "initial_checkpoint": "-pretrained",
    "opt": "-opts TRAIN.OPTIMIZER.NAME=VALUE",
    "sched": "-opts TRAIN.LR_SCHEDULER.NAME=VALUE",
    "min_lr": "-opts TRAIN.END_LR=VALUE",
    "warmup_lr": "-opts TRAIN.WARMUP_START_LR=VALUE",
    "clip_grad": "-opts TRAIN.GRAD_CLIP=VALUE",
    "drop_path": "-opts MODEL.DROP_PATH=VALUE",
    "mixup": "-opts TRAIN.MIXUP_ALPHA=VALUE",
    "cutmix": "-opts TRAIN.CUTMIX_ALPHA=VALUE",
    "reprob": "-opts TRAIN.RANDOM_ERASE_PROB=VALUE",
    "log_interval": "-opts REPORT_FREQ=VALUE",
}
# What stands behind -amp as if it took a value; the parser takes it for the data folder.
MEANT = {word.lower(): f"-amp_mode={word}? A folder is -data_path={word}" for word in PRECISION_MODES}
MEANT |= {word: f"-amp_dtype={name}? A folder is -data_path={word}" for word, name in HALF_NAMES.items()}
MEANT |= {f"-{key.rpartition('.')[2].lower()}": f"-opts {key}=VALUE?" for key in keys_of()}  # the name of a key alone
MEANT |= {f"-{word}": f"{option}?" for word, option in OF_OTHERS.items()}
