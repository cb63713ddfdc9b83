"""Prints what every test of a spec measured. Run: python docs/examples/numbers.py SPEC"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    target = Path(folder) / "out.json"
    command = [sys.executable, "-m", "pytest", "-q", "--attn-spec", *sys.argv[1:], "--attn-json", str(target)]
    subprocess.run(command, stdout=subprocess.DEVNULL)
    for case in json.loads(target.read_text())["cases"]:
        numbers = case["numbers"]
        shown = ", ".join(f"{name} {numbers[name]:.4g}" for name in ("min", "median", "max", "holding_share") if name in numbers)
        print(f"{case['test'].rpartition('::')[2]}: {shown}")
