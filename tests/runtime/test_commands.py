"""How options are spelt and what a program says of a mistake."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from image_classification.runtime import Parser, UserError, WithDefaults, command, commands, get_logger, log_to_stderr
from tests.helpers.model_zoo import ROOT


def parser():
    made = Parser(aliases={"j": "num_workers"})
    made.add_argument("cfg")
    made.add_argument("images", nargs="*")
    made.add_argument("-num_workers", type=int)
    made.add_argument_group("more").add_argument("-opt-level")
    made.add_argument("-switch", action="store_true")
    made.add_argument("-rounds", type="count")
    made.add_argument("-json", type="new_file")
    made.add_argument("-modes", type="names", nargs="?", const="O1,O1", default="fp32,fp32,auto")
    made.add_argument("-report", type="new_folder", default="a/b")
    return made


@pytest.mark.parametrize("word", ["-num_workers", "--num_workers", "-num-workers", "--num-workers", "-j", "--j"])
@pytest.mark.parametrize("form", ["{}={}", "{} {}"])
def test_option_has_one_dash_or_two_and_either_joint(word, form):
    assert parser().parse_args(["x", *form.format(word, -3).split()]).num_workers == -3


@pytest.mark.parametrize("words", ["x a b", "-cfg=x a b", "a --cfg x b", "a b -cfg=x"])
def test_model_is_named_or_first(words):
    found = parser().parse_args([*words.split(), "--opt_level=O1", "-switch"])
    assert (found.cfg, found.images, found.opt_level, found.switch) == ("x", ["a", "b"], "O1", True)


def test_help_with_defaults_says_none_where_there_is_none():
    made = Parser(description="a\n b", formatter_class=WithDefaults)
    made.add_argument("-rounds", default=5, help="how many")
    made.add_argument("-data", help="which")
    text = made.format_help()
    assert "a\n b" in text and "how many (default: 5)" in text and text.endswith("which\n")


def test_option_given_twice_has_its_last_value_and_says_so_or_all_where_it_takes_several(caplog):
    made = parser()
    made.add_argument("-opts", nargs="+", default=[])
    words = ["x", "--json=a", "-opts", "A=1", "B=2", "--rounds=4", "-json=b", "-opts", "C=3", "-rounds", "4"]
    found = made.parse_args(words)
    assert found.json == Path("b") and found.rounds == 4 and found.opts == ["A=1", "B=2", "C=3"]
    assert [record.getMessage() for record in caplog.records] == ["-json is given twice: b holds, a does not"]
    assert made.parse_args(["x"]).opts == []


def test_words_of_a_list_may_have_options_between_them():
    assert parser().parse_args(["x", "a", "-json=out", "b", "-num_workers=2", "c"]).images == ["a", "b", "c"]


def test_words_behind_two_dashes_are_values():
    assert parser().parse_args(["x", "--", "-num_workers"]).images == ["-num_workers"]


@pytest.mark.parametrize(("words", "names"), [
    ([], ("fp32", "auto")), (["-modes"], ("O1",)), (["-modes=b,a,b,a"], ("b", "a")),
])  # fmt: skip
def test_list_of_names_has_each_once_in_its_order(words, names):
    """What is measured twice under one name looks like two findings."""
    assert parser().parse_args(["x", *words]).modes == names


@pytest.mark.parametrize(("words", "message"), [
    (["x", "--num_worker=3"], "unknown argument '--num_worker=3'; did you mean -num_workers"),
    (["x", "-zzz"], "unknown argument '-zzz'; -h lists the options"),
    (["x", "-num_workers=many"], "invalid int value: 'many'"),
    (["-cfg"], "required: cfg.*; -h explains them"),
    (["x", "--switch=True"], "-switch: is a switch, which takes no value: found 'True'"),
    (["x", "--opt-level="], "-opt-level: is empty; give it a value or leave it out"),
    (["x", "a", ""], "images: is empty; give it a value or leave it out"),
    (["x", "-rounds=0"], "-rounds: expected an integer of at least 1, found '0'"),
    (["x", "-rounds=1.5"], "-rounds: expected an integer of at least 1, found '1.5'"),
    (["x", "-json=/etc/hostname/x"], "-json: /etc/hostname: is no folder"),
    (["x", "-json=/etc"], "-json: /etc: is a folder"),
    (["x", "-modes="], "-modes: is empty; give it a value or leave it out"),
    (["x", "-modes=b,,a"], "-modes: has an empty name: 'b,,a'"),
    (["x", "-modes=a,"], "-modes: has an empty name: 'a,'"),
    (["x", "-modes=,"], "-modes: has an empty name: ','"),
    (["x", "-modes", "a, "], "-modes: has an empty name: 'a, '"),
    (["x", "-report=/etc/hostname"], "-report: /etc/hostname: is no folder"),
])  # fmt: skip
def test_wrong_word_is_one_line(words, message):
    with pytest.raises(UserError, match=message):
        parser().parse_args(words)


@pytest.mark.parametrize(("text", "message"), [
    ("0", "expected an integer of at least 1, found '0'"),
    ("1000", "expected at most 3, the cores that this process may use, found 1000"),
])  # fmt: skip
def test_threads_are_no_more_than_the_cores(text, message, monkeypatch):
    monkeypatch.setattr(commands, "cores", lambda: 3)
    made = Parser()
    made.add_argument("-threads", type="threads")
    assert made.parse_args(["-threads=3"]).threads == 3
    with pytest.raises(UserError, match=f"-threads: {message}"):
        made.parse_args([f"-threads={text}"])


@pytest.mark.parametrize("program", ["tools/benchmark.py", "tools/benchmark_operators.py",
                                     "examples/accelerate_any_model.py"])  # fmt: skip
def test_program_asked_for_more_threads_than_cores_refuses_them(program):
    done = subprocess.run([sys.executable, program, "-threads=100000"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "error: argument -threads: expected at most " in done.stderr


@pytest.mark.parametrize(("error", "code", "said"), [
    (UserError("wrong"), 2, "error: wrong\n"), (KeyboardInterrupt(), 130, "error: interrupted\n"), (None, 0, ""),
    (OSError(36, "File name too long", "x"), 2, "error: x: File name too long\n"),
    (MemoryError("40 GB\n  [Hint: ...]"), 2, "error: out of memory: 40 GB\n"),
    (MemoryError(), 2, "error: out of memory: an allocation failed\n"),
])  # fmt: skip
def test_command_ends_with_a_line_and_a_code(error, code, said, capsys):
    @command
    def main(arguments):
        assert arguments == ["a"]
        if error:
            raise error

    assert main(["a"]) == code
    assert capsys.readouterr().err == said


@pytest.fixture
def hears_interrupts():
    """Python's own handler; a shell that runs the tests in the background has them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hears_interrupts")
def test_interrupt_of_which_a_library_makes_another_error_is_one_line(capsys):
    @command
    def main(arguments):
        try:
            if arguments:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(5)
        except KeyboardInterrupt:
            pass
        raise OSError("(External) KeyboardInterrupt: <EMPTY MESSAGE>")  # as Paddle does

    assert main(["interrupted"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(OSError, match="External"):
        main([])


def test_command_says_what_the_project_logs_beside_its_output(capsys, monkeypatch):
    for name, value in {"handlers": [], "propagate": True, "level": 0}.items():
        monkeypatch.setattr(get_logger(), name, value)

    @command
    def main(arguments):
        if arguments:
            log_to_stderr()
        get_logger().info("what is read")
        get_logger().warning("what is odd")
        print("the output")

    assert main([]) == main(["more"]) == main([]) == 0
    odd = "warning: what is odd\n"
    assert capsys.readouterr() == ("the output\n" * 3, odd + f"what is read\n{odd}" + odd)


def test_command_whose_reader_has_gone_ends_quietly():
    program = ("import sys; from image_classification.runtime import command\n"
               "@command\ndef main(arguments):\n    print('x' * 10**6)\n"
               "sys.exit(main([]))")  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(1)
    process.stdout.close()
    assert (process.wait(), process.stderr.read()) == (0, b"")
    process.stderr.close()


@pytest.mark.parametrize("encoding", ["ascii:strict", "ascii:surrogateescape", "utf-8:strict"])  # the second: LC_ALL=C
def test_command_prints_names_that_the_encoding_does_not_have(encoding):
    program = ("import sys; from image_classification.runtime import command\n"
               "@command\ndef main(arguments):\n    print('\\u0416 \\udce4')\n"
               "sys.exit(main())")  # fmt: skip
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    shown = {"ascii": "\\u0416 \\udce4\n", "utf-8": "\u0416 \\udce4\n"}[encoding.partition(":")[0]]
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, shown, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("count", [3, 10**6], ids=["in the end", "at once"])
def test_command_whose_disk_is_full_says_it_in_one_line(count):
    program = ("import sys; from image_classification.runtime import command\n"
               "@command\ndef main(arguments):\n    print('x' * int(arguments[0]))\n"
               "sys.exit(main())")  # fmt: skip
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-c", program, str(count)]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "error: what is printed: No space left on device\n")


@pytest.mark.parametrize("kind", ["new_file", "new_folder"])
def test_empty_path_of_what_is_written_is_not_the_working_folder(kind):
    parser = Parser()
    parser.add_argument("-out", type=kind)
    with pytest.raises(UserError, match="-out: is empty; give it a value or leave it out"):
        parser.parse_args(["-out="])
