"""What every command of the project has in common: how its options are spelt, and what a mistake looks like."""

import argparse
import difflib
import errno
import functools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .errors import UserError, first_line
from .files import why_unwritable
from .interrupts import ending, remembered_interrupts
from .log import get_logger, log_to_stderr
from .process import cores
from .streams import escape_what_cannot_be_printed, open_missing_streams, print_error

_NO_WORDS: Mapping[str, str] = {}
EMPTY = "is empty; give it a value or leave it out"  # what a shell makes of a variable that is not set


def command(main: Callable[[Sequence[str] | None], int | None]) -> Callable[..., int]:
    """Return the `main` of a program, which takes the words after its name: mistakes of the user are one line.

    Warnings of the project go to standard error; a program that wants more of its log there says :func:`log_to_stderr`.
    The exit code is 2 after a UserError, a file that cannot be read or written, a full disk or memory, 130 after
    Ctrl-C, 143 after SIGTERM, 0 where `main` returns None.
    """

    @functools.wraps(main)
    def run(arguments: Sequence[str] | None = None) -> int:
        open_missing_streams()
        escape_what_cannot_be_printed()
        log_to_stderr(logging.WARNING)
        try:
            with remembered_interrupts():
                code = main(sys.argv[1:] if arguments is None else arguments) or 0
            sys.stdout.flush()
            return code
        except UserError as error:
            print_error(f"error: {error}")
            return 2
        except KeyboardInterrupt as error:
            word, code = ending(error)
            print_error(f"error: {word}")
            return code
        except BrokenPipeError:  # `... | head` has seen enough
            _print_no_more()
            return 0
        except MemoryError as error:
            print_error(f"error: out of memory: {first_line(error)}")
            return 2
        except OSError as error:
            if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            if error.filename is None:
                _print_no_more()
            print_error(f"error: {error.filename or 'what is printed'}: {error.strerror}")
            return 2

    return run


def _print_no_more() -> None:
    """Let the end of the process write nowhere what is left of what was printed, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class WithDefaults(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Prints the description as it stands, and the default of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """Takes each option with one dash or two, with - or _ in its name; raises a UserError of one line for a mistake.

    ``type`` of an option may be one of five names, too: "count", an integer of at least 1; "threads", a count that is
    at most the number of cores; "names", a tuple of what stands between commas, each once; "new_file", "new_folder",
    the Path of what is written in the end, which is refused at once where that could not be.

    Args:
        aliases: {a word: the option that it stands for}, as words of their own: a short option would swallow what is
            typed wrongly.
        meant: {a word that is no option, in small letters, or -such_an_option: what the answer says was meant}.
    """

    def __init__(self, *args: Any, aliases: Mapping[str, str] = _NO_WORDS, meant: Mapping[str, str] = _NO_WORDS,
                 **options: Any):  # fmt: skip
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **options | {"allow_abbrev": False})
        self.aliases, self.meant = dict(aliases), dict(meant)
        for kind in (count, threads, names, new_file, new_folder):
            self.register("type", kind.__name__, kind)
        self.register("action", None, _Store)

    def error(self, message: str) -> NoReturn:
        message = message.replace("ignored explicit argument", "is a switch, which takes no value: found")
        raise UserError(message + ("; -h explains them" if "are required" in message else ""))

    # argparse declares overloads for a namespace, which nobody gives here.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        spelt = {_bare(flag): flag for action in self._actions for flag in action.option_strings}
        spelt |= {_bare(word): spelt[_bare(flag)] for word, flag in self.aliases.items()}
        end = words.index("--") if "--" in words else len(words)
        words[:end] = [_respelt(word, spelt) for word in words[:end]]
        if any(action.dest == "cfg" and not action.option_strings for action in self._actions):
            words = _cfg_first(words)
        found, unknown = super().parse_known_args(words, namespace)
        for action in self._actions:
            value = getattr(found, action.dest, None)
            if (value == "" != action.default) or (isinstance(value, list) and "" in value):
                raise UserError(f"{action.option_strings[0] if action.option_strings else action.dest}: {EMPTY}")
        return found, unknown

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the options.

        Raises:
            UserError: an unknown option, with the nearest one, a missing or a wrong value.
        """
        found, unknown = self.parse_known_args(args, namespace)
        for action in self._actions:
            if action.nargs in ("+", "*") and not action.option_strings:  # argparse takes those in a row alone
                words = [word for word in unknown if word[:1] != "-"]
                setattr(found, action.dest, [*getattr(found, action.dest), *words])
                unknown = [word for word in unknown if word not in words]
        if unknown:
            self.refuse(unknown[0])
        return found

    def pass_on(self, other: "Parser") -> None:
        """Take the options of another program, too: its words, as it takes them, are `words` of what is returned.

        What both have, -h or -cfg, stays this one's.
        """
        self.set_defaults(words=())
        self.aliases |= other.aliases
        self.meant |= other.meant
        own = {flag for action in self._actions for flag in action.option_strings}
        for action in other._actions:
            if action.option_strings and not own.intersection(action.option_strings):
                self.add_argument(*action.option_strings, dest="words", default=(), action=_PassOn, nargs=action.nargs,
                                  help=argparse.SUPPRESS)  # fmt: skip

    def refuse(self, word: str) -> NoReturn:
        """Raise the UserError about a word that is none of the options."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        name = f"-{_bare(word.partition('=')[0])}" if word[:1] == "-" else word
        near = difflib.get_close_matches(name, flags, n=1) if word[:1] == "-" else []
        meant = self.meant.get(name.lower()) or (f"{near[0]}?" if near else "")
        hint = "-h lists the options" if word[:1] == "-" else "a path with blanks needs quotes"
        raise UserError(f"unknown argument {word!r}; {f'did you mean {meant}' if meant else hint}")


class _Store(argparse.Action):
    """Keeps the value of an option; of one given twice the last, and says so; of one with several values all."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        before = getattr(namespace, self.dest)
        if option_string and before is not self.default and before != values:
            if self.nargs == "+":
                values = [*before, *values]
            else:
                get_logger().warning(f"{option_string} is given twice: {values} holds, {before} does not")
        setattr(namespace, self.dest, values)


class _PassOn(argparse.Action):
    """Keeps the option and its values as the words that they were."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        words = [f"{option_string}={values}"] if isinstance(values, str) else [option_string, *values]
        namespace.words = (*namespace.words, *words)


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, found {text!r}")
    return int(text)


def threads(text: str) -> int:
    number = count(text)
    if number > cores():
        raise argparse.ArgumentTypeError(
            f"expected at most {cores()}, the cores that this process may use, found {number}"
        )
    return number


def names(text: str) -> tuple[str, ...]:
    _refuse_empty(text)
    found = tuple(dict.fromkeys(text.split(",")))
    if not all(map(str.strip, found)):  # an empty word is part of every name
        raise argparse.ArgumentTypeError(f"has an empty name: {text!r}")
    return found


def new_folder(text: str) -> Path:
    _refuse_empty(text)
    why = why_unwritable(text)
    if why:
        raise argparse.ArgumentTypeError(why)
    return Path(text)


def new_file(text: str) -> Path:
    _refuse_empty(text)
    if os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text}: is a folder")
    return new_folder(os.path.dirname(text) or ".") / os.path.basename(text)


def close_names(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three of the known names, the nearest first, whatever their case; none where none is near."""
    spelt = {each.lower(): each for each in known}
    return [spelt[each] for each in difflib.get_close_matches(name.lower(), spelt)]


def _refuse_empty(text: str) -> None:
    if not text:  # a Path of it would be the working folder
        raise argparse.ArgumentTypeError(EMPTY)


def _cfg_first(words: list[str]) -> list[str]:
    """Return the words with the value of a -cfg in front, where a program takes it without the name."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in ("-cfg", "--cfg") and (equals or words[index + 1 :]):
            rest = words[index + 1 :] if equals else words[index + 2 :]
            return [value if equals else words[index + 1], *words[:index], *rest]
    return words


def _bare(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


def _respelt(word: str, spelt: Mapping[str, str]) -> str:
    """Return a word with its option as the parser knows it; what is no option stays."""
    name, equals, value = word.partition("=")
    return f"{spelt.get(_bare(name), name)}{equals}{value}" if name.startswith("-") else word
