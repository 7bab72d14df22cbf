"""How the library of compiled kernels is built, and what becomes of a process where it cannot be."""

import concurrent.futures
import contextlib
import ctypes
import fcntl
import itertools
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from image_classification.half_cpu import compiled_library, compiler

needs_library = pytest.mark.skipif(compiled_library.load() is None, reason="needs a C++ compiler and AVX2")


def test_library_is_built_once_into_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "SOURCES", small_sources(tmp_path / "cpp"))
    folder = tmp_path / "cache"
    folder.mkdir()
    killed = tempfile.mkdtemp(dir=folder)  # what a process leaves that is killed while it builds
    Path(killed, "one.o").touch()
    path = compiler.build(folder)
    stamp = path.stat().st_mtime_ns
    assert compiler.build(folder) == path
    assert path.stat().st_mtime_ns == stamp
    assert sorted(entry.name for entry in folder.iterdir()) == sorted([path.name, "lock"])


def test_library_of_other_sources_has_another_name(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "SOURCES", small_sources(tmp_path / "cpp"))
    before = compiler.build(tmp_path / "cache")
    (tmp_path / "cpp" / "one.cpp").write_text('extern "C" int two() { return 2; }')
    assert compiler.build(tmp_path / "cache") != before


@needs_library
@pytest.mark.parametrize("processor", ["haswell", "skylake-avx512", "sapphirerapids"])
def test_kernels_compile_for_every_kind_of_processor(tmp_path, processor):
    """Those who test have one of them; another has other branches of the sources, such as AMX."""
    sources = sorted(compiler.SOURCES.iterdir())
    flags = [flag for flag in compiler.FLAGS if flag not in ("-O3", "-march=native")]
    command = [*compiler.find(), *flags, f"-march={processor}", "-w"]
    # The system's headers, which are most of what each source would be read with, are read once.
    lines = {line for path in sources for line in path.read_text().splitlines() if line.startswith("#include <")}
    header = tmp_path / "system.h"
    header.write_text("\n".join(sorted(lines)))
    done = subprocess.run([*command, "-x", "c++-header", header, "-o", f"{header}.gch"], capture_output=True, text=True)
    if "march" in done.stderr:
        pytest.skip(f"the compiler knows no {processor}")
    assert done.returncode == 0, done.stderr[:3000]
    files = [path for path in sources if path.suffix == ".cpp"]
    done = subprocess.run([*command, "-fsyntax-only", "-include", header, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]


def small_sources(folder):
    folder.mkdir()
    (folder / "one.cpp").write_text('extern "C" __attribute__((visibility("default"))) int one() { return 1; }')
    return folder


def small_compiler(path, commands):
    """Write a compiler that runs these commands of the shell first, with the real one as $REAL."""
    path.write_text(f'#!/bin/sh\nREAL="{compiler.find()[0]}"\n{commands}\nexec "$REAL" "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(("kept", "zeros"), [(0, 0), (5000, 0), (-5000, 0), (-1, 0), (5000, 100_000)])
def test_library_that_is_not_whole_is_built_anew(kept, zeros, tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "SOURCES", small_sources(tmp_path / "cpp"))
    path = compiler.build(tmp_path / "cache")
    part = path.read_bytes()[:kept] + bytes(zeros)
    path.write_bytes(part)  # what a disk has of it after a crash; to load it may end the process
    assert compiler.build(tmp_path / "cache") == path
    assert path.read_bytes() != part
    assert ctypes.CDLL(str(path)).one() == 1


def test_sources_that_change_while_they_are_compiled_leave_no_library_under_their_name(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "SOURCES", small_sources(tmp_path / "cpp"))
    source = tmp_path / "cpp" / "one.cpp"
    changes = f'case "$*" in *one.cpp*) sed -i s/1/2/ "{source}";; esac'  # as a checkout of another version does
    monkeypatch.setenv("CXX", small_compiler(tmp_path / "compiler", changes))
    with pytest.raises(OSError, match="^.*cpp: was changed while it was compiled$"):
        compiler.build(tmp_path / "cache")
    assert ctypes.CDLL(str(compiler.build(tmp_path / "cache"))).one() == 2


def test_compiler_that_fails_is_the_error_and_ends_all_others(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "SOURCES", small_sources(tmp_path / "cpp"))
    (tmp_path / "cpp" / "two.cpp").write_text("")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(2))
    other = tmp_path / "other"
    fails = f'while [ ! -s "{other}" ]; do sleep 0.01; done; printf "no \\351 space" >&2; exit 1'  # in Latin-1
    waits = f'echo $$ > "{other}"; exec sleep 60'
    cases = f'case "$*" in *one.cpp*) {fails};; *two.cpp*) {waits};; esac'
    monkeypatch.setenv("CXX", small_compiler(tmp_path / "compiler", cases))
    with pytest.raises(subprocess.CalledProcessError) as error:
        compiler.build(tmp_path / "cache")
    assert "space" in error.value.stderr
    wait_for_end(int(other.read_text()))
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == ["lock"]


BUILDS = """
import sys
from pathlib import Path
from image_classification.half_cpu import compiler
compiler.SOURCES = Path(sys.argv[1])
compiler.build(Path(sys.argv[2]))
"""


def test_compilers_and_what_they_started_end_with_a_process_that_is_killed(tmp_path):
    """The system kills so where memory is short, which compilers that go on would keep short."""
    small_sources(tmp_path / "cpp")
    started = tmp_path / "started"
    says = f'echo $$ $! > "{started}.new"; mv "{started}.new" "{started}"'
    waits = f'case "$*" in *one.cpp*) sleep 60 & {says}; wait;; esac'
    environment = os.environ | {"CXX": small_compiler(tmp_path / "compiler", waits)}
    words = [sys.executable, "-c", BUILDS, str(tmp_path / "cpp"), str(tmp_path / "cache")]
    with subprocess.Popen(words, env=environment) as process:
        while not started.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    for number in started.read_text().split():
        wait_for_end(int(number))


def wait_for_end(number):
    for _ in range(1000):
        try:  # one that has ended is still there where nobody asks for its end
            if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.01)
    os.kill(number, signal.SIGKILL)
    pytest.fail("it goes on")


def test_compiler_may_have_words_of_its_own_and_a_path_with_blanks(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "SOURCES", small_sources(tmp_path / "cpp"))
    program = small_compiler(tmp_path / "my compiler", "")
    monkeypatch.setenv("CXX", f"'{program}' -Done=two")
    assert ctypes.CDLL(str(compiler.build(tmp_path / "cache"))).two() == 1
    monkeypatch.setenv("CXX", program)
    assert compiler.find() == (program,)


def test_compiler_that_is_killed_leaves_nothing_in_the_temporary_folder(tmp_path, monkeypatch):
    """Ctrl-C, or another one that failed, ends compilers by SIGKILL: what they write to a file stays."""
    monkeypatch.setattr(compiler, "SOURCES", small_sources(tmp_path / "cpp"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    plan = f'case "$*" in *" -c "*) "$REAL" "$@" "-###" 2> "{tmp_path / "plan"}";; esac'
    monkeypatch.setenv("CXX", small_compiler(tmp_path / "compiler", plan))
    compiler.build(tmp_path / "cache")
    plan = (tmp_path / "plan").read_text()
    assert "one.cpp" in plan and "temporary" not in plan


def test_as_many_compilers_run_at_once_as_there_are_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "SOURCES", small_sources(tmp_path / "cpp"))
    for name in ("two", "three", "four"):
        (tmp_path / "cpp" / f"{name}.cpp").write_text("")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(2))
    log = tmp_path / "log"
    noted = f'case "$*" in *" -c "*) echo begins >> "{log}"; sleep 0.1; "$REAL" "$@"; echo ends >> "{log}"; exit;; esac'
    monkeypatch.setenv("CXX", small_compiler(tmp_path / "compiler", noted))
    assert ctypes.CDLL(str(compiler.build(tmp_path / "cache"))).one() == 1
    steps = [1 if line == "begins" else -1 for line in log.read_text().split()]
    assert max(itertools.accumulate(steps)) == 2


def test_processes_that_start_at_once_build_one_library(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "SOURCES", small_sources(tmp_path / "cpp"))
    counted = f'case "$*" in *-shared*) echo once >> "{tmp_path / "count"}"; sleep 0.3;; esac'
    monkeypatch.setenv("CXX", small_compiler(tmp_path / "compiler", counted))
    with concurrent.futures.ProcessPoolExecutor(3, multiprocessing.get_context("fork")) as pool:
        paths = list(pool.map(compiler.build, [tmp_path / "cache"] * 3))
    assert len(set(paths)) == 1
    assert (tmp_path / "count").read_text() == "once\n"


@contextlib.contextmanager
def locked(cache, held):
    """Hold the lock of a cache folder, as a process does that compiles."""
    if held:
        (cache / "half_cpu").mkdir(parents=True)
        with open(cache / "half_cpu" / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    else:
        yield


def test_process_that_waits_for_one_that_compiles_says_so(tmp_path, monkeypatch, caplog):
    """It takes minutes, in which a second run would stand without a word."""
    monkeypatch.setattr(compiler, "SOURCES", small_sources(tmp_path / "cpp"))
    monkeypatch.setattr(compiler, "LIMIT", 0.5)
    with caplog.at_level(logging.INFO), locked(tmp_path, True), pytest.raises(OSError, match="another process has had"):
        compiler.build(tmp_path / "half_cpu")
    assert f"another process compiles: {tmp_path / 'half_cpu' / 'lock'}" in caplog.text


@pytest.mark.parametrize(("sources", "why"), [
    ("no compiler", "no C++ compiler: no-such-compiler not found"),
    ("no words", "no C++ compiler: 'g++: No closing quotation"),
    ("idle compiler", "compiler: ended without an error, and without a library"),
    ("idle compiler that writes", "compiler: ended without an error, and without a library"),
    ("no folder", "half_cpu: cannot be written to: Not a directory; XDG_CACHE_HOME may name another folder"),
    ("no home", "XDG_CACHE_HOME may name a folder for them"),
    ("full disk", "File size limit exceeded"),
    ("wordy compiler", "one.s: Fatal error: No space left on device"),
    ("wordy compiler and no temporary folder", "one.s: Fatal error: No space left on device"),
    ("broken sources", "error: "),
    ("hanging", "was not done after"),
    ("locked", "another process has had"),
])  # fmt: skip
def test_library_that_cannot_be_built_is_none_and_the_log_says_why(sources, why, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(compiler, "SOURCES", small_sources(tmp_path / "cpp"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if sources == "no compiler":
        monkeypatch.setenv("CXX", "no-such-compiler -m64")
    elif sources == "no words":
        monkeypatch.setenv("CXX", "'g++")
    elif sources == "idle compiler":
        monkeypatch.setenv("CXX", small_compiler(tmp_path / "compiler", "exit 0"))
    elif sources == "idle compiler that writes":
        writes = 'while [ $# -gt 1 ]; do [ "$1" = -o ] && echo text > "$2"; shift; done; exit 0'
        monkeypatch.setenv("CXX", small_compiler(tmp_path / "compiler", writes))
    elif sources == "no folder":
        (tmp_path / "cache").write_text("a file where the folder should be")
    elif sources == "no home":  # a container's user without a name
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.setattr(os, "getuid", lambda: 1234567)
    elif sources == "full disk":  # for compilers and linkers
        monkeypatch.setenv("CXX", small_compiler(tmp_path / "compiler", "ulimit -f 1"))
    elif sources.startswith("wordy compiler"):
        if sources.endswith("no temporary folder"):  # or a full one
            monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        says = r"one.s: Assembler messages:\none.s: Fatal error: No space left on device\n"
        fails = f'case "$*" in *one.cpp*) printf "{says}" >&2; exit 1;; esac'
        monkeypatch.setenv("CXX", small_compiler(tmp_path / "compiler", fails))
    elif sources == "broken sources":
        (tmp_path / "cpp" / "one.cpp").write_text("this is not C++")
    else:
        monkeypatch.setattr(compiler, "LIMIT", 0.5)
        waits = f'case "$*" in *one.cpp*) sleep 2; : > "{tmp_path / "left"}";; esac'
        monkeypatch.setenv("CXX", small_compiler(tmp_path / "compiler", waits if sources == "hanging" else ""))
    with caplog.at_level(logging.WARNING), locked(tmp_path / "cache", sources == "locked"):
        assert compiled_library.load.__wrapped__() is None
    if sources == "hanging":
        time.sleep(2)
        assert not (tmp_path / "left").exists()  # no compiler goes on
    (record,) = caplog.records
    assert "without its compiled kernels" in record.message and "\n" not in record.message
    assert why in record.message
