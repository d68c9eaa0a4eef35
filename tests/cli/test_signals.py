"""A signal ends a command with one calm line, wherever it arrives."""

import subprocess
import sys
import textwrap

import pytest

START = """
import os, signal, time
import lmd.cli
import lmd.cli.commands

def stop():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)

def app(standalone_mode):
{}

lmd.cli.commands.app = app
lmd.cli.main()
"""
MOMENTS = {
    "work": "stop()",
    "destructor": """
        class Dying:
            def __del__(self):
                stop()
        Dying()
        time.sleep(30)""",
    "second signal": """
        try:
            stop()
        finally:
            stop()""",
    "broken pipe": """
        try:
            stop()
        except BaseException:
            raise RuntimeError("a worker has ended") from None""",
    "import": """
        import importlib.abc, sys
        class Finder(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                stop()
        sys.meta_path.insert(0, Finder())
        import no_such_module""",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_is_one_calm_line(moment: str) -> None:
    body = textwrap.indent(textwrap.dedent(MOMENTS[moment]), "    ")
    done = stopped(body, "train", "DATA")
    assert done.returncode == 130, done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("interrupted: run the same command with --resume")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("demo", "run the same command with --resume to continue"),
        ("benchmark", "run the same command again to continue"),
        ("predict", "run the command again"),
    ],
)
def test_it_says_how_this_command_goes_on(command: str, words: str) -> None:
    done = stopped("    stop()", command)
    assert done.returncode == 130, done.stderr
    assert words in done.stderr
    assert ("--resume" in done.stderr) == (command == "demo")


def stopped(body: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", START.format(body), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
