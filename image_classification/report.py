"""What a run says of itself before and after: the log lines of what runs, report.json, the table of results."""

from .runtime import get_logger


def describe(parts):
    """Log what runs: parallel, precision, model and weights."""
    config, logger = parts.config, get_logger()
    size = parts.parallel.num_parameters(parts.model)
    for note in config.NOTES:
        logger.info(note)
    logger.info(f"parallel: {parts.parallel.describe()}")
    logger.info(f"precision: {parts.precision.describe()}")
    logger.info(f"model: {config.MODEL.NAME or 'unnamed'}, {size / 1e6:.2f} M parameters")
    if parts.teacher is not None:
        train, its_format = config.TRAIN, "float32" if config.MODEL.TEACHER_FP32 else "the same precision"
        logger.info(
            f"teacher: {config.MODEL.TEACHER} in {its_format}, {train.DISTILLATION_TYPE}, alpha "
            f"{train.DISTILLATION_ALPHA:g}, tau {train.DISTILLATION_TAU:g}"
        )
    logger.info(f"weights: {config.MODEL.RESUME or parts.weights or f'fresh, seed {config.SEED}'}")


def empty_report(parts):
    """Return the report with every key it will ever have; ``report.json`` has the same keys in every mode."""
    config, precision = parts.config, parts.precision
    return {
        "mode": "eval" if config.EVAL else "train",
        "model": config.MODEL.NAME,
        "dataset": config.DATA.DATASET,
        "device": parts.device,
        "precision": {"mode": precision.mode, "dtype": precision.dtype, "backend": precision.backend},
        "world_size": parts.parallel.world_size,
        "epochs": 0,
        "steps": 0,
        "skipped_steps": 0,
        "loss_scale": precision.loss_scale,
        "train_loss": None,
        "top1": None,
        "top5": None,
        "eval_images": 0,
        "best_top1": None,
        "images_per_second": 0.0,
        "seconds": 0.0,
        "peak_memory_bytes": 0,
        "checkpoint": None,
    }


def result_table(report):
    """Return the figures of a finished run as text."""
    precision = report["precision"]
    rows = [
        ("model", report["model"]),
        ("precision", f"{precision['mode']}/{precision['dtype']} on {report['device']} ({precision['backend']})"),
        ("top-1", f"{report['top1']:.4f}"),
        ("top-5", f"{report['top5']:.4f}"),
        ("best top-1", f"{report['best_top1']:.4f}"),
        ("images evaluated", report["eval_images"]),
        ("steps", f"{report['steps']} ({report['skipped_steps']} skipped)"),
        ("images/s", f"{report['images_per_second']:.1f}"),
        ("seconds", f"{report['seconds']:.1f}"),
        ("peak memory", f"{report['peak_memory_bytes'] / 2**20:.0f} MiB"),
        ("checkpoint", report["checkpoint"]),
    ]
    width = max(len(name) for name, _ in rows)
    return "result\n" + "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)
