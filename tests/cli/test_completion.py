"""Completion of words, in the shells themselves where they are here; and what --version says."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import plugstream
from plugstream import cli
from plugstream.cli.completion import SCRIPTS, SHELLS, Command, read_commands


@pytest.fixture(scope="module")
def commands() -> list[Command]:
    """A few commands are enough to see that all kinds of words are known."""
    with pytest.MonkeyPatch.context() as patch:
        some = {name: cli.COMMANDS[name] for name in ("reconstruct", "info", "train", "completion")}
        patch.setattr(cli, "COMMANDS", some)
        return read_commands()


def ask_bash(script: Path, *words: str) -> list[str]:
    """What bash would offer for the last of these words."""
    line = " ".join(f"'{word}'" for word in words)
    code = f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _plugstream; "
    code += "printf '%s\\n' \"${COMPREPLY[@]}\""
    done = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, check=True, cwd=script.parent)
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def test_bash_completes_commands_flags_values_and_files(commands: list[Command], tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(SCRIPTS["bash"](commands))
    (tmp_path / "scan one.zarr").mkdir()
    assert ask_bash(script, "plugstream", "rec") == ["reconstruct"]
    assert ask_bash(script, "plugstream", "--ver") == ["--version"]
    assert "--denoiser" in ask_bash(script, "plugstream", "reconstruct", "--")
    assert ask_bash(script, "plugstream", "reconstruct", "--denoiser", "bm") == ["bm3d", "bm4d"]
    assert ask_bash(script, "plugstream", "reconstruct", "--denoiser", "=", "bm") == ["bm3d", "bm4d"]
    assert set(ask_bash(script, "plugstream", "reconstruct", "--sampler", "")) >= {"uniform", "epochs"}
    assert ask_bash(script, "plugstream", "reconstruct", "scan") == ["scan one.zarr"]
    assert ask_bash(script, "plugstream", "reconstruct", "--out", "scan o") == ["scan one.zarr"]
    assert ask_bash(script, "plugstream", "reconstruct", "--sigma", "") == [""]
    assert ask_bash(script, "plugstream", "train", "un") == ["unet"]
    # What a denoiser brings along comes with it, and not without.
    own = set(ask_bash(script, "plugstream", "reconstruct", "--denoiser", "nlm", "--"))
    assert own - set(ask_bash(script, "plugstream", "reconstruct", "--"))


def type_into_zsh(folder: Path, keys: str, awaited: str) -> str:
    """What a zsh with the completions of a folder shows when keys are pressed, up to the words awaited."""
    pty = pytest.importorskip("pty")
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="dumb", PS1="> ", HOME=str(folder))
        os.execvp("zsh", ["zsh", "-f", "-i"])
    shown = b""
    try:
        os.write(terminal, f"fpath=({folder} $fpath); autoload -U compinit; compinit -u -D; print read''y\n".encode())
        for words, after in ((b"ready", keys.encode()), (awaited.encode(), b"")):
            end = time.monotonic() + 60
            while words not in shown and time.monotonic() < end:
                if select.select([terminal], [], [], 1)[0]:
                    shown += os.read(terminal, 4096)
            os.write(terminal, after)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)
    return shown.decode(errors="replace")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_theirs(shell: str, commands: list[Command], tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(SCRIPTS[shell](commands))
    assert "--denoiser" in script.read_text() or "-l denoiser" in script.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    subprocess.run([shell, "-n", script], check=True)
    if shell == "fish":
        code = f"source {script}; complete -C 'plugstream reconstruct --denoiser bm'"
        done = subprocess.run([shell, "--no-config", "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split("\t")[0].strip() == "bm3d"
    else:
        script.rename(tmp_path / "_plugstream")
        assert "reconstruct --denoiser bm3d" in type_into_zsh(
            tmp_path, "plugstream reconstruct --denoiser bm\t", "bm3d"
        )


def test_every_flag_of_help_is_completed(commands: list[Command], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["reconstruct", "--help-all"])
    shown = set(re.findall(r"(?m)^  +(--[a-z-]+)", capsys.readouterr().out))
    (reconstruct,) = (command for command in commands if command.name == "reconstruct")
    assert len(shown) > 60
    assert shown - {name for flag in reconstruct.flags for name in flag.names} == set()


def test_the_command_writes_a_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "COMMANDS", {name: cli.COMMANDS[name] for name in ("info", "completion")})
    for shell in SHELLS:
        assert cli.main(["completion", shell]) == 0
        assert "plugstream" in capsys.readouterr().out
    assert cli.main(["completion", "tcsh"]) == 2


def test_version_says_what_a_report_needs() -> None:
    """In a process of its own, since this one has torch: of a build without CUDA it is not imported."""
    code = "import sys\nfrom plugstream.cli import main\ntry: main(['--version'])\nexcept SystemExit: pass\n"
    code += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told, imported = done.stdout.splitlines()
    assert told.startswith(f"plugstream {plugstream.__version__} (")
    assert re.search(r"(native (avx512|avx2|baseline)|no native kernels), torch \S+, .*Python 3\.\d+", told)
    assert (imported == "True") == ("+cpu" not in told)
    without = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PLUGSTREAM_NATIVE": "0"},
    )
    assert "no native kernels" in without.stdout
