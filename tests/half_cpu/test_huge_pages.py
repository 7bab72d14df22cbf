"""Memory in huge pages: what is asked for, when, and that the numbers stay."""

import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from image_classification.half_cpu import huge_pages

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
OFFERED = SETTING.exists() and "[never]" not in SETTING.read_text(encoding="ascii")

# In a process of its own, whose maps nobody else changes: 64 MiB in use before the call, in pages of 4 KiB.
PROGRAM = """
import ctypes, mmap
from image_classification.half_cpu.huge_pages import Adviser

def filled(size):
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for start in range(0, size, 4096):
        memory[start:start + 4096] = pattern
    return memory

def address(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))

def state(memory):
    inside = False
    for line in open("/proc/self/smaps"):
        words = line.split()
        if not words[0].endswith(":"):
            first, last = (int(part, 16) for part in words[0].split("-"))
            inside = first <= address(memory) < last
        elif inside and words[0] == "AnonHugePages:":
            size = int(words[1])
        elif inside and words[0] == "VmFlags:":
            return "hg" in words, size > 32 << 10  # KiB, half of it

pattern = bytes(range(256)) * 16
large, probe = filled(64 << 20), filled(8 << 20)
probe.madvise(mmap.MADV_HUGEPAGE)
madvise, aligned = ctypes.CDLL(None).madvise, -(-address(probe) // (2 << 20)) * (2 << 20)
collapses = not madvise(ctypes.c_void_p(aligned), ctypes.c_size_t(2 << 20), 25)
before = state(large)
adviser = Adviser()
for _ in range(8):
    adviser()
print(collapses, *before, *state(large), large[:] == pattern * (len(large) // len(pattern)))
"""


@pytest.mark.skipif(not OFFERED, reason="this system has no huge pages to ask for")
def test_adviser_large_memory_gets_huge_pages_with_the_same_content():
    finished = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    collapses, asked_before, huge_before, asked, huge, same = finished.stdout.split()
    assert (asked_before, huge_before) == ("False", "False")
    assert (asked, same) == ("True", "True")
    assert huge == collapses  # an older Linux gives huge pages to new memory only


def test_adviser_many_calls_asks_ever_more_rarely(monkeypatch):
    calls, looked = [], []
    monkeypatch.setattr(huge_pages, "_regions", lambda: looked.append(len(calls)) or [])
    adviser = huge_pages.Adviser()
    for number in range(1, 600):
        calls.append(number)
        adviser()
    assert looked == ([8, 64, 512] if hasattr(mmap, "MADV_HUGEPAGE") else [])


def test_regions_without_proc_are_none(monkeypatch):
    def refuse(*arguments, **options):
        raise FileNotFoundError(arguments[0])

    monkeypatch.setattr(huge_pages, "open", refuse, raising=False)
    assert huge_pages._regions() == []


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc here")
def test_regions_hold_large_private_memory_and_no_files(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(32 << 20))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as mapped:
        private = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        shared = mmap.mmap(-1, 32 << 20)
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        regions = huge_pages._regions()
        assert mapped[0] == private[0] == shared[0] == 0
    assert regions
    named = {tuple(int(part, 16) for part in line.split()[0].split("-")): line for line in lines if "/" in line}
    for start, end in regions:
        assert start % (2 << 20) == end % (2 << 20) == 0
        assert not any(start < last and first < end for first, last in named)
