"""Compiles the Triton kernels for a GPU that need not be there: `python -m tests.support.triton_compiler CAPABILITY`.

Prints a list of JSON objects, one for each kernel and form of it.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from swiftlet_models.ragged import kernels, scaled_kernels
from swiftlet_models.ragged.layout import Places

BF16, INT32 = "*bf16", "*i32"


def main() -> None:
    capability = int(sys.argv[1])
    found = [compiled(*form, capability) for form in forms(capability)]
    print(json.dumps(found))


def forms(capability: int) -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]]:
    """Yields kernels, types of arguments, constants and options, as the networks use them."""
    places = dict.fromkeys(("ends", "focus_ends", "focus", *Places._fields[:3], "at", "owner"), INT32)
    places |= dict.fromkeys(("sequences", "tokens", "count", "token_blocks"), "i32")
    yield kernels._locate, places, {"block": kernels.PLACES, "step": kernels.ENDS}, {"num_warps": 4}
    vectors = dict.fromkeys(("x", "residual", "weight", "bias", "out"), BF16)
    vectors |= {"width": "i32", "residual_stride": "i32", "epsilon": "fp32"}
    for block in (512, 1024):
        yield kernels._layer_norm, vectors, {"has_residual": True, "block": block}, {"num_warps": 1}
    tables = dict.fromkeys(("x", "position_table", "type_table", "weight", "bias", "out"), BF16)
    indices = dict.fromkeys(("input_ids", "positions", "type_ids"), INT32)
    constants = {"has_ids": True, "has_types": True, "has_norm": True, "block": 1024}
    yield kernels._add_embeddings, tables | indices | {"width": "i32", "epsilon": "fp32"}, constants, {"num_warps": 1}
    window = {"words": BF16, "out": BF16, "tokens": "i32", "width": "i32"}
    window |= dict.fromkeys(("input_ids", "before", "after"), INT32)
    yield kernels._window, window, {"block": 128}, {"num_warps": 1}
    attention = dict.fromkeys(("query", "key", "value", "out"), BF16) | {"ends": INT32, "sequences": "i32"}
    attention |= dict.fromkeys(("query_stride", "key_stride", "value_stride"), "i32")
    blocks = {"queries": kernels.QUERIES, "keys": kernels.KEYS, "capacity": 512, "causal": True}
    for heads, width in ((4, 32), (12, 64), (8, 128)):
        options = {"num_warps": 4 if width <= 64 else 8, "num_stages": 3}
        yield kernels._attend, attention, blocks | {"heads": heads, "width": width}, options
    eight_bits = ("i8", "fp8e4nv") if capability >= 90 else ()  # older GPUs multiply those in torch
    for small, tiles in itertools.product(eight_bits, (scaled_kernels.FEW, scaled_kernels.MANY)):
        rows = {"x": BF16, "small": f"*{small}", "step": "*fp32", "width": "i32", "stride": "i32", "largest": "fp32"}
        yield scaled_kernels._quantise, rows, {"rounds": small == "i8", "block": 1024}, {"num_warps": 1}
        operands = dict.fromkeys(("step", "scales", "bias"), "*fp32") | {"out": BF16}
        operands |= dict.fromkeys(("rows", "columns", "depth"), "i32")
        operands |= {
            name: f"tensordesc<{small}[{high}, {tiles.depth}]>"
            for name, high in (("small", tiles.rows), ("weight", tiles.columns))
        }
        fixed = {"activation": 2, "is_int": small == "i8", "group": scaled_kernels.GROUP}
        fixed |= {"block_rows": tiles.rows, "block_columns": tiles.columns, "block_depth": tiles.depth}
        yield scaled_kernels._multiply, operands, fixed, {"num_warps": tiles.warps, "num_stages": tiles.stages}
    names = kernels._feed_forward.arg_names
    sizes = {"networks": 4, "width": 128, "intermediate": 512, "hidden": 512}
    width = sizes["width"]
    for form in (kernels.FORMS if capability >= 90 else kernels.OLDER_FORMS).values():
        shapes = {
            "attended": (form.rows, width),
            "residual": (form.rows, width),
            "output_weight": (width, width),
            "inner_weight": (width, form.step),
            "outer_weight": (form.step, width),
            "leave_weight": (width, form.leave_step),
        }
        types = {name: BF16 for name in names if name not in {*sizes, "tokens", "rows", "step", "leave_step"}}
        types |= {name: f"tensordesc<bf16[{rows}, {columns}]>" for name, (rows, columns) in shapes.items()}
        blocks = {"rows": form.rows, "step": form.step, "leave_step": form.leave_step}
        options = {"num_warps": form.warps, "num_stages": form.stages}
        yield kernels._feed_forward, types | {"tokens": "i32"}, sizes | blocks, options


def compiled(
    kernel: Any, types: dict[str, str], constants: dict[str, Any], options: dict[str, int], capability: int
) -> dict[str, object]:
    """Returns what a compiled kernel needs."""
    signature = types | dict.fromkeys(constants, "constexpr")
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    # As at run time: addresses and strides are multiples of 16.
    aligned = {
        (kernel.arg_names.index(name),): [["tt.divisibility", 16]]
        for name, kind in types.items()
        if (kind.startswith("*") or name.endswith("stride"))
        and not (kernel is kernels._locate and name in ("ends", "focus_ends", "focus"))
    }
    source = ASTSource(kernel, {name: signature[name] for name in kernel.arg_names}, places, aligned)
    result = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx = result.asm["ptx"]
    return {
        "name": kernel.__name__,
        "constants": constants,
        "shared": result.metadata.shared,
        "multiplies_in_tensor_cores": "wgmma" in ptx or "mma.sync" in ptx,
    } | usage(result.asm["cubin"])


def usage(cubin: bytes) -> dict[str, int]:
    """Returns the registers of a thread, and the bytes that it spills to memory."""
    program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [program, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", text))
    return {"registers": int(found["REG"]), "spilled": int(found["STACK"]) + int(found["LOCAL"])}


if __name__ == "__main__":
    main()
