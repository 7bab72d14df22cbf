"""Train one configuration in several precision modes over several seeds, and print the table of accuracies.

    python tools/compare_precision.py -cfg vit_tiny_digits --modes fp32,auto --dtypes float16,bfloat16 --seeds 0,1

Each run is a process of its own, started as a user starts it; a run that is already in --output is not repeated, so an
interrupted comparison continues: what it left of the run that was stopped is removed, a folder of that name that this
tool did not begin is refused. After Ctrl-C, or when a run fails, no other one begins. The table gives, for each mode
and number format, the mean top-1 over the seeds, its spread, and the difference to float32 in points.
"""

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import yaml

if not __package__:  # run by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from image_classification.config import (
    chosen,
    family_of_file,
    find_yaml,
    invocation_yaml,
    model_folders,
    preview_config,
    to_yaml,
)
from image_classification.config.schema import FLOAT32_MODES, HALF_DTYPES, HALF_NAMES, PRECISION_MODES
from image_classification.runtime import Parser, UserError, atomic_write, command, cores, progress_bar, refuse_existing

BEGUN = "begun"  # the configuration of a run, beside what it writes; "done" in the end


@command
def main(arguments):
    """Make the runs that are missing and print the table."""
    arguments = parse_arguments(arguments)
    read_means(arguments.json)
    runs = {(mode, dtype, seed): prepare(arguments, (mode, dtype, seed))
            for mode, dtype in formats(arguments) for seed in arguments.seeds}  # fmt: skip
    reports, stopped, running = {}, threading.Event(), []
    bar = progress_bar(len(runs), "runs", "run")
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = {pool.submit(unless, stopped, running, arguments, runs[run]): run for run in runs}
        try:
            for done in concurrent.futures.as_completed(waiting):
                reports[waiting[done]] = done.result()
                bar.update()
        except KeyboardInterrupt:
            stopped.set()
            while concurrent.futures.wait(waiting, timeout=0.1).not_done:  # one may just have been started
                for process in running:
                    process.kill()  # what it leaves is of no use: the run is made anew
            raise
    bar.close()
    print(table(arguments, reports))
    if arguments.json:
        record(arguments.json, arguments, reports)


def parse_arguments(words):
    parser = Parser(description=__doc__)
    parser.add_argument("-cfg", required=True, help="model, recipe, YAML file or run's folder")
    parser.add_argument("-modes", type="names", default="fp32,auto",
                        help=f"of {', '.join(PRECISION_MODES)} (default: %(default)s)")  # fmt: skip
    parser.add_argument("-dtypes", type="names", default="float16,bfloat16", help="of these two (default: %(default)s)")
    parser.add_argument("-seeds", type="names", default="0,1,2", help="seeds (default: %(default)s)")
    parser.add_argument("-output", type="new_folder", default="output/compare",
                        help="folder of the runs (default: %(default)s)")  # fmt: skip
    parser.add_argument("-jobs", type="count", default=1, help="runs at the same time (default: %(default)s)")
    parser.add_argument("-json", type="new_file", metavar="FILE", help="add the means to those in this file")
    parser.add_argument("-opts", nargs="+", default=[], metavar="KEY=VALUE", help="keys of every run")
    arguments = parser.parse_args(words)
    arguments.cfg = find_yaml(arguments.cfg).resolve()
    for seed in arguments.seeds:
        if not seed.removeprefix("-").isdecimal():
            parser.error(f"-seeds: expected integers, found {seed!r}")
    arguments.seeds = list(dict.fromkeys(map(int, arguments.seeds)))
    arguments.modes = chosen(arguments.modes, PRECISION_MODES, "-modes", dict.fromkeys(HALF_NAMES, "-dtypes"))
    arguments.dtypes = chosen(arguments.dtypes, HALF_DTYPES, "-dtypes", HALF_NAMES)
    return arguments


def formats(arguments):
    """Return (mode, dtype) of every row; the modes without a half format have one row each."""
    for mode in arguments.modes:
        for dtype in ("float32",) if mode in FLOAT32_MODES else arguments.dtypes:
            yield mode, dtype


def prepare(arguments, run):
    """Return the folder of a run, the words of its command and its whole configuration as text.

    Raises:
        UserError: the words make another run of it, or its folder has the result of another configuration, or what
            this tool did not begin.
    """
    mode, dtype, seed = run
    output = (arguments.output / "_".join(map(str, (arguments.cfg.stem, *run)))).resolve()
    words = [f"-cfg={arguments.cfg}", f"-seed={seed}", f"-amp_mode={mode}", f"-output={output}"]
    words += [] if dtype == "float32" else [f"-amp_dtype={dtype}"]
    words += ["-opts", f"SAVE_FREQ={10**6}", *arguments.opts]
    config = preview_config(words)
    for key, found, wanted in (
        ("SEED", config.SEED, seed),
        ("AMP.MODE", config.AMP.MODE, mode),
        ("AMP.DTYPE", config.AMP.DTYPE, config.AMP.DTYPE if dtype == "float32" else dtype),
        ("OUTPUT", config.OUTPUT, str(output)),
        ("EVAL", config.EVAL, False),
        ("DRY_RUN", config.DRY_RUN, False),
        ("MODEL.RESUME", config.MODEL.RESUME, None),
        ("TRAIN.PROFILE_STEP", config.TRAIN.PROFILE_STEP, None),
        ("NGPUS", config.NGPUS, -1),
    ):
        if found != wanted:
            raise UserError(f"-opts: {key}: each run has its own, {wanted}, found {found}; leave it out")
    configuration, done = to_yaml(config) + invocation_yaml(config), output / "done"
    if done.exists() and done.read_text(encoding="utf-8") != configuration:
        raise UserError(f"-output: {output}: has the result of another configuration; name another folder")
    if not (done.exists() or (output / BEGUN).exists()):
        refuse_existing(output, "-output")
    return output, words, configuration


def unless(stopped, running, arguments, prepared):
    """Train unless another run has failed: the pool would make all the others first, for hours."""
    if stopped.is_set():
        return None
    try:
        return train(arguments, *prepared, running)
    except BaseException:
        stopped.set()
        raise


def train(arguments, output, words, configuration, running):
    """Return the report of one run, of which :func:`prepare` returned the rest; its process joins those `running`.

    Raises:
        UserError: the run failed; the message has its last line.
    """
    from image_classification.run_folder import take_lock  # loads numpy, which a typing mistake need not wait for

    if not (output / "done").exists():
        if (output / BEGUN).exists():
            with take_lock(output):
                shutil.rmtree(output)  # what a stopped run of this tool has left
        with atomic_write(output / BEGUN) as file:
            file.write(configuration.encode())
        program = model_folders()[family_of_file(arguments.cfg)] / "main_single_gpu.py"
        environment = {"OMP_NUM_THREADS": str(max(1, cores() // arguments.jobs)), **os.environ}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, program, *words], env=environment, **pipes) as process:
            running.append(process)
            _, said = process.communicate()
        if process.returncode:
            reason = (said.strip() or "no message").splitlines()[-1]
            raise UserError(f"{output.name} failed: {reason.removeprefix('error: ')}")
        check_complete(output)
        (output / BEGUN).rename(output / "done")
    return json.loads((output / "report.json").read_text())


def check_complete(output):
    """Refuse a run that a signal stopped: it ends with exit code 0, a checkpoint and the report of its last epoch.

    Raises:
        UserError: the run has trained fewer epochs than its configuration says.
    """
    wanted = yaml.safe_load((output / "config.yaml").read_text(encoding="utf-8"))["TRAIN"]["NUM_EPOCHS"]
    report = output / "report.json"
    epochs = json.loads(report.read_text())["epochs"] if report.exists() else 0
    if epochs < wanted:
        raise UserError(f"{output.name} was stopped after {epochs} of {wanted} epochs; the same command repeats it")


def read_means(path):
    """Return {variant: {mode/format: mean top-1}} of a JSON file, of none or of one that is not there {}.

    Raises:
        UserError: it is another file.
    """
    try:
        known = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}
    except ValueError:
        known = None
    if not isinstance(known, dict) or not all(isinstance(means, dict) for means in known.values()):
        raise UserError(f"-json: {path}: is no file of means that this tool wrote; name another")
    return known


def record(path, arguments, reports):
    """Add {variant: {mode/format: mean top-1}} to a JSON file, one line a variant."""
    known = read_means(path)
    for mode, dtype in formats(arguments):
        values = [reports[mode, dtype, seed]["top1"] for seed in arguments.seeds]
        mean = round(sum(values) / len(values), 4)
        known.setdefault(arguments.cfg.stem, {})[mode if dtype == "float32" else f"{mode}/{dtype}"] = mean
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(known[name], sort_keys=True)}" for name in sorted(known))
    with atomic_write(path) as file:
        file.write(f"{{\n{lines}\n}}\n".encode())


def table(arguments, reports):
    """Return the markdown table."""
    baseline = [report["top1"] for (mode, _, _), report in reports.items() if mode == "fp32"]
    reference = sum(baseline) / len(baseline) if baseline else None
    lines = [
        f"| {arguments.cfg.stem} | format | top-1, {len(arguments.seeds)} seeds | range | points to fp32 | skipped |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for mode, dtype in formats(arguments):
        rows = [reports[mode, dtype, seed] for seed in arguments.seeds]
        values = [row["top1"] for row in rows]
        mean = sum(values) / len(values)
        difference = "" if reference is None else f"{100 * (mean - reference):+.2f}"
        skipped = ", ".join(str(row["skipped_steps"]) for row in rows)
        lines.append(
            f"| {mode} | {dtype} | {mean:.4f} | {min(values):.4f} - {max(values):.4f} | {difference} | {skipped} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
