"""Instructions per value of the noise pass on a GPU, compiled for compute capability 9.0 without one.

python -m benchmarks.instructions [bf16|fp16|fp32 ...]: a pass of one term over a tensor, and over a table of 300.
Counts what a full, aligned program runs, without the masked reads and writes of a tensor's last program.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from zo.noise.cuda import passes
from zo.noise.cuda.engine import BLOCK

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
WARPS = 4
LINE = re.compile(r"\.(L_x_\d+):|\s+/\*[0-9a-f]+\*/\s+(@!?U?P\d+ )?\s*([A-Z0-9_]+)([.\w]*)")
SWITCHES = {"LEVELS": 9, "ONE": True, "PENDING": False, "KEEPS": False, "AT_RANDOM": False}


def compiled(dtype: str, signs: bool, many: bool) -> str:
    """Returns the machine code of a pass."""
    names = passes.run.arg_names
    kinds = {"out": f"*{dtype}", "theta": f"*{dtype}", "table": "*i64", "keep": "fp32"}
    kinds |= dict.fromkeys(("count", "pending", "tensor", "width", "parts"), "i32")
    kinds |= {"places": "*i64"} if many else {}
    absent = dict.fromkeys({"scale", "rows", "limit", "places"} - kinds.keys())
    fixed: dict[str, Any] = {**absent, **SWITCHES, "start": 0, "SIGNS": signs, "BLOCK": BLOCK}
    signature = {name: kinds.get(name, "constexpr") for name in names}
    values = {(names.index(name),): value for name, value in fixed.items()}
    source = ASTSource(fn=passes.run, signature=signature, constexprs=values)
    options = {"num_warps": WARPS, "enable_fp_fusion": False}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(made.asm["cubin"])
        command = [str(TOOLS / "nvdisasm"), "-c", file.name]
        return subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL)


def per_value(dtype: str, signs: bool, many: bool) -> float:
    """Returns instructions per value, without the blocks that read or write single masked values."""
    blocks = [[0, 0]]
    for label, mask, name, kind in LINE.findall(compiled(dtype, signs, many)):
        blocks[-1][0] += not label
        blocks[-1][1] += bool(mask) and name in ("LDG", "STG") and not kind.endswith(("64", "128"))
        if label or name in ("BRA", "EXIT"):
            blocks.append([0, 0])
    return sum(size for size, masked in blocks if masked < 4) * WARPS * 32 / (4 * BLOCK)


if __name__ == "__main__":
    for dtype in sys.argv[1:] or ("bf16", "fp16", "fp32"):
        for signs in (False, True):
            one, many = (f"{per_value(dtype, signs, m):.1f}" for m in (False, True))
            print(f"{dtype} {'signs' if signs else 'normals'}: {one} a value, {many} from a table")
