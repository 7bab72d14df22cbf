"""The folder of a run belongs to it: another run, an evaluation or a second process is refused and changes nothing."""

import resource
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from image_classification import launch
from image_classification.config import build_config, find_yaml, load_config, to_yaml
from image_classification.run_folder import RESULTS, WRITTEN, RunFolder, check_output
from image_classification.runtime import UserError
from image_classification.ViT.vit import build_model

ROOT = Path(__file__).resolve().parents[1]


def config_of(output, **model):
    evaluates = model.pop("EVAL", False)
    return build_config([("test", {"OUTPUT": str(output), "MODEL": model, "EVAL": evaluates})])


def test_run_folder_holds_the_recipe_that_made_it_and_the_invocation_beside_it(tmp_path):
    config = build_config([("test", {"SAVE": str(tmp_path), "SEED": 11, "MODEL": {"RESUME": "x"}})])
    folder = RunFolder.create(config)
    assert folder.path.parent == tmp_path and folder.path.name.startswith("train-")
    again = load_config(["-cfg", str(folder.path / "config.yaml")])
    assert to_yaml(again) == to_yaml(load_config(["-cfg", write(tmp_path, to_yaml(config))]))
    assert again.SEED == 11 and again.MODEL.RESUME is None
    assert "RESUME: x" in (folder.path / "invocation.yaml").read_text()


def write(folder, text):
    path = folder / "again.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", ["run", "my run", "it's (2)"])
def test_way_to_go_on_with_a_run_can_be_copied_into_a_shell(name, tmp_path):
    path = RunFolder.create(config_of(tmp_path / name)).path
    (path / "latest.pdparams").touch()
    with pytest.raises(UserError, match="holds a run already") as refused:
        check_output(config_of(path))
    word = str(refused.value).partition("continue it with ")[2].partition(", or name another folder")[0]
    assert shlex.split(word) == [f"-resume={path / 'latest'}"]


def test_two_run_folders_made_in_one_second_differ(tmp_path):
    config = build_config([("test", {"SAVE": str(tmp_path)})])
    assert len({RunFolder.create(config).path for _ in range(3)}) == 3


@pytest.mark.parametrize("trace", [name.replace("*", "epoch_0003") for name in RESULTS])
def test_folder_of_another_run_is_refused_with_the_ways_out(tmp_path, trace):
    (tmp_path / trace).write_text("precious")
    with pytest.raises(UserError, match="holds results of another project: name another folder"):
        check_output(config_of(tmp_path))
    (tmp_path / ".lock").write_text("")
    with pytest.raises(UserError, match="holds a run already: name another folder"):
        check_output(config_of(tmp_path))
    (tmp_path / "latest.pdparams").write_text("precious")
    with pytest.raises(UserError, match=f"-resume={tmp_path}/latest, or name another folder"):
        RunFolder.create(config_of(tmp_path))
    with pytest.raises(UserError, match="evaluation"):
        RunFolder.create(config_of(tmp_path, EVAL=True, RESUME=str(tmp_path / "latest")))
    with pytest.raises(UserError, match="holds a run already"):
        check_output(config_of(tmp_path, RESUME=str(tmp_path / "elsewhere" / "latest")))
    assert (tmp_path / trace).read_text() == "precious"


def test_start_that_left_no_result_may_be_repeated_and_nothing_of_it_is_mixed_in(tmp_path):
    first = RunFolder.create(config_of(tmp_path))
    first.append_metrics({"step": 1})
    del first
    again = RunFolder.create(config_of(tmp_path))
    again.append_metrics({"step": 2})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 2}\n'


@pytest.mark.parametrize(("place", "goes_on"), [("else/latest", False), ("run/latest", True), ("run", True)])
def test_metrics_go_on_where_the_checkpoint_is_of_this_folder_only(tmp_path, place, goes_on):
    """A start that left no result has lines, too; a training that comes from elsewhere is not behind them."""
    RunFolder.create(config_of(tmp_path / "run")).append_metrics({"step": 1})
    folder = RunFolder.create(config_of(tmp_path / "run", RESUME=str(tmp_path / place)))
    folder.append_metrics({"step": 2})
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == goes_on * '{"step": 1}\n' + '{"step": 2}\n'


def test_resume_from_the_folder_and_a_folder_with_other_files_are_welcome(tmp_path):
    (tmp_path / "photo.jpg").write_text("")
    check_output(config_of(tmp_path))
    RunFolder.create(config_of(tmp_path))
    (tmp_path / "latest.pdparams").write_text("")
    for resumed in (tmp_path, tmp_path / "latest", tmp_path / "latest.pdparams"):
        check_output(config_of(tmp_path, RESUME=str(resumed)))
    (tmp_path / ".lock").unlink()  # copied without hidden files
    check_output(config_of(tmp_path, RESUME=str(tmp_path)))


@pytest.mark.parametrize("place", ["of/another", "of"])
def test_output_that_resume_names_but_no_run_has_left_is_refused(tmp_path, place):
    """A checkpoint in the folder of another project, and a run's folder below one with files."""
    folder, resumed = tmp_path / "of", tmp_path / place
    resumed.mkdir(parents=True)
    (folder / "log.txt").write_text("precious")
    (resumed / "latest.pdparams").write_text("")
    for given in (resumed, resumed / "latest"):
        with pytest.raises(UserError, match=f"-output: {folder}.*: name another folder$"):
            check_output(config_of(folder, RESUME=str(given)))


@pytest.mark.parametrize("name", [name.replace("[0-9]*", "1") for name in WRITTEN])
def test_file_of_the_user_that_a_run_would_write_over_is_refused_and_stays(tmp_path, name):
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / name).write_text("precious")
    for evaluates in (False, True):
        with pytest.raises(UserError, match=f"-output: {folder / name}: exists.*: name another folder$"):
            check_output(config_of(folder, EVAL=evaluates, RESUME=str(tmp_path / "latest")))
    assert [path.name for path in folder.iterdir()] == [name] and (folder / name).read_text() == "precious"


def test_recipe_that_lies_in_the_output_is_refused_before_it_is_replaced_by_the_resolved_one(tmp_path, capsys):
    recipe = tmp_path / "config.yaml"
    recipe.write_text(find_yaml("vit_tiny_digits").read_text() + "# mine\n")
    assert launch.run_guarded(build_model, [f"-cfg={recipe}", f"-output={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: -output: {recipe}: ") and error.count("\n") == 1
    assert recipe.read_text().endswith("# mine\n")


HOLDER = """
import sys
from image_classification.config import build_config
from image_classification.run_folder import RunFolder
folder = RunFolder.create(build_config([("test", {"OUTPUT": sys.argv[1]})]))
print("locked", flush=True)
sys.stdin.read()
"""


def test_second_process_in_a_running_runs_folder_is_refused_until_the_first_one_ends(tmp_path):
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "locked\n"
        (tmp_path / "latest.pdparams").write_text("")
        resumed = config_of(tmp_path, RESUME=str(tmp_path))
        with pytest.raises(UserError, match="another run is writing to it"):
            RunFolder.create(resumed)
        holder.kill()
    RunFolder.create(resumed)


@pytest.mark.parametrize("key", ["OUTPUT", "SAVE"])
@pytest.mark.parametrize("dry", [False, True])
def test_folder_that_cannot_be_written_to_is_refused_before_a_run_begins(tmp_path, key, dry):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("file", "file/run", "dangling"):
        config = build_config([("test", {key: str(tmp_path / name), "DRY_RUN": dry})])
        with pytest.raises(UserError, match=f"{'-output' if key == 'OUTPUT' else 'SAVE'}: .*is no folder"):
            check_output(config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file"]
    check_output(build_config([("test", {key: str(tmp_path / "new" / "run")})]))


@pytest.mark.parametrize("key", ["OUTPUT", "SAVE"])
def test_home_that_no_shell_has_put_in_is_refused_and_no_folder_of_that_name_is_made(tmp_path, monkeypatch, key):
    """A shell leaves the ~ of -output=~/run as it is, and a YAML file has none."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"-?{key}: ~/run: .*write the whole path$".replace("OUTPUT", "output")):
        check_output(build_config([("test", {key: "~/run"})]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("dataset", "splits", "place", "lies_among"), [
    ("folder", (), "run", True), ("folder", (), "output/run", True), ("folder", ("train", "val"), "run", False),
    ("folder", ("train", "val"), "train/run", True), ("imagenet2012", (), "run", False),
    ("imagenet2012", ("train",), "train/cat/run", True), ("list", (), "run", False), ("digits", (), "run", False),
    ("imagenet_tfrecord", ("validation",), "validation", True), ("imagenet_tfrecord", (), "run", False),
    ("caltech101", (), "caltech101/101_ObjectCategories/run", True), ("caltech101", (), "run", False),
])  # fmt: skip
@pytest.mark.parametrize("key", ["OUTPUT", "SAVE"])
def test_output_among_the_images_is_refused_as_its_pictures_would_be_a_class(
    tmp_path, key, dataset, splits, place, lies_among
):
    for split in splits:
        (tmp_path / split).mkdir()
    data = {"DATASET": dataset, "DATA_PATH": str(tmp_path)}
    config = build_config([("test", {key: str(tmp_path / place), "DATA": data})])
    refused = pytest.raises(UserError, match="lies among the images.*: name another folder$")
    with refused if lies_among else nullcontext():
        check_output(config)


def test_circle_of_links_is_left_to_whoever_reads_it(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    data = {"DATASET": "folder", "DATA_PATH": str(tmp_path / "loop")}
    config = build_config([("test", {"OUTPUT": str(tmp_path / "run"), "DATA": data})])
    check_output(config)
    RunFolder.create(config)
    check_output(config_of(tmp_path / "run", RESUME=str(tmp_path / "loop")))


def test_output_of_an_impossible_name_is_an_error_that_says_why():
    config = build_config([("test", {"OUTPUT": "x" * 300})])
    with pytest.raises(UserError, match="-output: xxx.*: File name too long"):
        check_output(config)


@pytest.mark.parametrize(("error", "code", "said"), [
    (PermissionError(13, "Permission denied", "/elsewhere"), 2, "error: /elsewhere: Permission denied\n"),
    (OSError(12, "Cannot allocate memory"), 3, "error: out of memory: [Errno 12] Cannot allocate memory; lower -batch"),
], ids=["file", "memory"])  # fmt: skip
def test_error_of_the_system_in_a_run_is_one_line(monkeypatch, capsys, error, code, said):
    def run(*arguments):
        raise error

    monkeypatch.setattr(launch, "run", run)
    assert launch.run_guarded(build_model, ["-cfg=vit_tiny_digits"]) == code
    line = capsys.readouterr().err
    assert line.startswith(said) and line.count("\n") == 1


def test_line_of_the_metrics_that_a_disk_takes_a_part_of_leaves_none_and_waits(tmp_path):
    folder, (soft, hard) = RunFolder(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    folder.append_metrics({"kind": "train", "step": 1})
    size = (tmp_path / "metrics.jsonl").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))  # Python has the signal of it ignored
    try:
        folder.append_metrics({"kind": "train", "step": 2})
        assert (tmp_path / "metrics.jsonl").stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    folder.append_metrics({"kind": "train", "step": 3})
    assert [record["step"] for record in folder.read_metrics()] == [1, 2, 3]
