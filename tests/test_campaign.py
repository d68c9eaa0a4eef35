"""The campaign can be started, continues from its results, and writes its table."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from toys import ROOT

PAGE = "before\n<!-- campaign: begin -->\nold\n<!-- campaign: end -->\nafter\n"


@pytest.mark.slow
def test_results_become_a_table(tmp_path: Path) -> None:
    page, run = tmp_path / "page.md", ROOT / "tests" / "campaign" / "run.py"
    page.write_text(PAGE)
    row = {"seed": 0, "kind": "kill-phase", "commit": "0123abc", "where": "stage 1, then report"}
    rows = [row | {"number": i, "found": "right"} for i in range(3)]
    rows += [row | {"number": 3, "found": "right", "where": "stage 1, then end"}]
    rows += [row | {"kind": "models", "number": 0, "found": "a traceback:\nx", "where": ""}]
    lines = [json.dumps(one) for one in rows]
    (tmp_path / "results.jsonl").write_text("\n".join([*lines, '{"seed": 0, "ki']))
    done = subprocess.run(
        [sys.executable, str(run), "--share", "0", "--folder", str(tmp_path), "--page", str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")  # one outcome was wrong
    found = page.read_text()
    assert found.startswith("before\n<!-- campaign: begin -->\n`make campaign`, seed 0, at commit ")
    assert found.endswith("<!-- campaign: end -->\nafter\n")
    assert "0123abc (5 experiments)" in found
    assert "every third one twice, then `--resume` | 4 | 4 | the same weights" in found
    assert "7 kills -9 in 4 experiments, 1 damaged or hostile inputs" in found
    assert "report 3; stage 1 4. 1 more came too late and are not counted." in found
    assert "- models 0: a traceback: x" in found
