"""Complete training states on disk: written whole or not at all, independent of the precision they were trained in.

A checkpoint is one ``.pdparams`` file, a pickled dictionary of plain Python values and NumPy arrays with a checksum
behind it; ``checkpoint_schema.py`` says what each may be:

========== ==========================================================================================
format     1
model      float32 parameters and buffers under the plain model's names, whatever the mode
optimizer  "<parameter>/<slot>" -> array
precision  mode, dtype and the scaler's state
ema        the averaged weights, or nothing
progress   epoch, batch, step, skipped steps, best accuracy, sums of the running epoch
units      images of a batch, of a step, of the training set, steps of an epoch: what the progress counts
run        what else the run folder holds then: this file's name, whether it is the best, metrics' length, the report
rng        generators of Python, NumPy and Paddle, one entry a process
config     the effective configuration as YAML
========== ==========================================================================================
"""

import os
import re
import shutil
from pathlib import Path

import paddle

from .checkpoint_schema import validate
from .files.pickle_file import dump_pickle, read_pickle
from .runtime import UserError, atomic_write, writing_to
from .weights.load import differences

FORMAT = 1
WEIGHTS_ALONE = (".safetensors", ".pth", ".pt")
KEYS = {"format", "model", "optimizer", "precision", "ema", "progress", "rng", "config"}


def find(path):
    """Return the file that the user meant by ``-resume``, with or without ``.pdparams``; of a folder its ``latest``.

    Raises:
        UserError: there is no such file.
    """
    for candidate in (Path(path), Path(f"{path}.pdparams"), Path(path) / "latest.pdparams"):
        if os.path.isfile(candidate):  # pathlib's raises where a name is too long
            if candidate.suffix in WEIGHTS_ALONE:
                raise UserError(f"-resume: {path}: holds weights, and no state of a training: -pretrained takes it")
            return candidate
    if os.path.isdir(path):
        raise UserError(f"-resume: {path}: the folder has no latest.pdparams")
    raise UserError(f"-resume: {path}: no such file, with or without .pdparams")


def to_arrays(tree):
    """Return the nested dictionary with every tensor as a NumPy array."""
    if isinstance(tree, dict):
        return {name: to_arrays(value) for name, value in tree.items()}
    return tree.numpy() if isinstance(tree, paddle.Tensor) else tree


def save(path, state):
    """Write the state; a reader sees the old file or the new one, never a part."""
    with atomic_write(path) as file:
        dump_pickle(to_arrays(state), file)


def load(path):
    """Return the state of a checkpoint with NumPy arrays.

    Raises:
        UserError: the file is not a whole checkpoint of this project, or holds what no run of it can have left.
    """
    return check(read(path), path)


def check(state, path):
    """Return what :func:`read` found if it is the state of a run of this project, else raise UserError."""
    missing = KEYS - state.keys()
    if missing:
        raise UserError(f"-resume: {path}: is not a training checkpoint, it lacks {', '.join(sorted(missing))}; "
                        "-pretrained takes weights alone")  # fmt: skip
    if type(state["format"]) is not int or state["format"] != FORMAT:
        raise UserError(f"-resume: {path}: has checkpoint format {state['format']}, this version reads {FORMAT}")
    validate(state, path)
    return state


def lies_in(path, folder):
    """Return whether a checkpoint is one of a run's folder, None for one that is still to be named."""
    return folder is not None and os.path.realpath(folder) == os.path.dirname(os.path.realpath(path))


def check_unfinished(path, epoch, config, is_own):
    """Return when a checkpoint of so many epochs leaves something to train, or was the last one of the run that goes on
    in its own folder: it is resumed to write what a kill left unwritten.

    Raises:
        UserError: nothing is left.
    """
    epochs = config.TRAIN.NUM_EPOCHS
    if epoch > epochs or (epoch == epochs and not is_own):
        raise UserError(f"-resume: {path} has {epoch} epochs done, TRAIN.NUM_EPOCHS is {epochs}: nothing to train")


def check_matches(own, loaded, path):
    """Compare names and shapes of two states before anything is changed.

    Raises:
        UserError: the first differences, so that a wrong architecture is told from a wrong head.
    """
    text = differences(own, loaded)
    if text:
        raise UserError(f"-resume: {path}: is of another model: {text}")


def read(path):
    """Return the dictionary that a file holds, whoever wrote it.

    Raises:
        UserError: it cannot be read, is damaged, or holds anything else.
    """
    try:
        state = read_pickle(path).tree  # a pickle is a program: this reader runs none of it
    except UserError as error:
        raise UserError(f"-resume: {error}") from None
    if not isinstance(state, dict):
        raise UserError(f"-resume: {path}: expected a dictionary, found {type(state).__name__}")
    return state


class Store:
    """The checkpoints of one run: ``epoch_0003.pdparams`` of the last few epochs, ``latest`` and ``best``.

    Saving is one commit, so that the process may be killed between any two system calls. The metrics are flushed
    before it, the report is written after it (`hooks`). What is true when the process is killed

    * before ``latest`` is renamed into place: nothing has changed but for a hidden leftover, which the next start
      removes; a resume from ``latest`` repeats the steps since then and cuts the metrics back to them;
    * later: the checkpoint counts. Its own name, ``best``, the report and the epochs to drop follow from what is in it,
      and :meth:`complete` brings them up to date on a resume from ``latest``, be it that nothing is left to train.
    """

    def __init__(self, folder, keep):
        self.folder = Path(folder)
        self.keep = keep

    def save(self, state, name, is_best=False):
        """Write ``latest``, give it the name ``<name>.pdparams`` (and ``best``), drop what is older than the last few.

        Raises:
            UserError: the folder cannot be written to; ``latest`` is the old checkpoint or the new one, whole.
        """
        latest = self.folder / "latest.pdparams"
        save(latest, state)
        self.complete(latest, name, is_best)
        return self.folder / f"{name}.pdparams"

    def save_best(self, state):
        """Write ``best`` alone: that of the run which goes on here.

        Raises:
            UserError: the folder cannot be written to.
        """
        with writing_to(self.folder):
            save(self.folder / "best.pdparams", state)

    def complete(self, path, name, is_best=False):
        """Do what comes after ``latest`` was written, once or again; any other file than it changes nothing."""
        latest = self.folder / "latest.pdparams"
        with writing_to(self.folder):
            if not (latest.exists() and latest.samefile(path)):
                return
            self._alias(latest, name)
            if is_best:
                self._alias(latest, "best")
            if name != "step":
                for old in [file for file in self._epochs() if _epoch(file.stem) <= _epoch(name)][: -self.keep]:
                    old.unlink()

    def _alias(self, path, name):
        # A hard link stays whole when `latest` is replaced; it is renamed into place, never half there.
        target = self.folder / f"{name}.pdparams"
        if target.exists() and target.samefile(path):
            return  # to rename one link of a file onto another does nothing, and both names would stay
        temporary = self.folder / f".{target.name}.new_link"
        temporary.unlink(missing_ok=True)
        try:
            os.link(path, temporary)
        except OSError:  # a file system without links; a full one complains about the copy
            with open(path, "rb") as source, atomic_write(target) as file:
                shutil.copyfileobj(source, file)
        else:
            temporary.replace(target)

    def _epochs(self):
        """Return the files of whole epochs, oldest first."""
        files = [path for path in self.folder.glob("epoch_*.pdparams") if re.fullmatch(r"epoch_\d+", path.stem)]
        return sorted(files, key=lambda path: _epoch(path.stem))


def _epoch(name):
    return int(name.removeprefix("epoch_"))
