"""Build FlashInfer's SM90 CUTLASS MoE module for some number formats only.

The whole module is 248 objects, more than an hour on 16 cores. This compiles those that the named formats need, by
FlashInfer's own build rules (it writes the ninja file), and gives every other kernel a body that aborts and names
itself. For measuring and for tests; a server's image builds or installs the whole module.

    python scripts/build_moe_sm90.py --format fp8 --format mxfp4 fused_moe_90.so

Needs nvcc and ninja, no GPU; objects are kept in FlashInfer's workspace, so a stopped build goes on where it was.
"""

import argparse
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")

# Per format: the runner's translation unit, and what its generated kernels' template arguments begin with.
FORMATS = {
    "bf16": ("moe_gemm_kernels_bf16_bf16", r"Sm90, __nv_bfloat16, __nv_bfloat16, "),
    "fp8": ("moe_gemm_kernels_fp8_fp8", r"Sm90, __nv_fp8_e4m3, __nv_fp8_e4m3, __nv_bfloat16"),
    "mxfp4": ("moe_gemm_kernels_bf16_fp4", r"<__nv_bfloat16, SafeFP4, "),
    "mxfp4_fp8": ("moe_gemm_kernels_fp8_fp4", r"<__nv_fp8_e4m3, SafeFP4, __nv_bfloat16"),
}
RUNNER = re.compile(r"moe_gemm_kernels_\w+|lora")


def objects_of(ninja: Path, formats: list[str]) -> list[str]:
    """The objects of the ninja file that the formats need: shared ones, their runners and their kernels."""
    units = {FORMATS[name][0] for name in formats}
    kernels = re.compile("|".join(FORMATS[name][1] for name in formats))
    needed = []
    for target, source in re.findall(r"^build (\S+\.o): \S+ (\S+)", ninja.read_text(), re.MULTILINE):
        path = Path(source)
        if "generated" not in path.name:
            runner = RUNNER.match(path.stem)
            keep = runner is None or path.stem in units
        elif "gemm_grouped/80" in source:
            keep = "bf16" in formats
        else:
            keep = "gemm_grouped/90" in source and kernels.search(path.read_text()) is not None
        if keep:
            needed.append(target)
    return needed


def link(objects: list[str], library: Path, cuda: Path) -> None:
    """Link the objects; whatever of the module they leave undefined aborts with its own name when called."""
    libraries = [path for path in (cuda / "lib64", cuda / "lib", cuda / "lib64/stubs") if path.is_dir()]
    flags = ["-shared", *(f"-L{path}" for path in libraries), "-l:libcudart.so.13", "-l:libnvrtc.so.13", "-Wl,-z,lazy"]
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.so"
        subprocess.run(["c++", *objects, *flags, "-o", bare], check=True)
        listing = subprocess.run(["nm", "-D", "--undefined-only", bare], capture_output=True, text=True, check=True)
        names = sorted({line.split()[-1].split("@")[0] for line in listing.stdout.splitlines()})
        absent = [name for name in names if re.search("tensorrt_llm|kernels|cutlass", name)]
        body = ["#include <stdio.h>", "#include <stdlib.h>"]
        for number, name in enumerate(absent):
            body.append(f'__attribute__((weak)) void absent{number}(void) __asm__("{name}");')
            body.append(f'void absent{number}(void) {{ fputs("not built: {name}\\n", stderr); abort(); }}')
        source = Path(folder) / "absent.c"
        source.write_text("\n".join(body) + "\n")
        subprocess.run(["cc", "-O1", "-fPIC", "-c", source, "-o", source.with_suffix(".o")], check=True)
        subprocess.run(["c++", *objects, source.with_suffix(".o"), *flags, "-s", "-o", library], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", action="append", choices=sorted(FORMATS), required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("library", type=Path)
    arguments = parser.parse_args()

    from flashinfer.jit.cpp_ext import get_cuda_path
    from flashinfer.jit.fused_moe import gen_cutlass_fused_moe_sm90_module

    spec = gen_cutlass_fused_moe_sm90_module()
    spec.write_ninja()
    ninja = Path(spec.ninja_path)
    objects = objects_of(ninja, arguments.format)
    print(f"building {len(objects)} objects", flush=True)
    began = time.monotonic()
    subprocess.run(["ninja", "-C", ninja.parent, f"-j{arguments.jobs}", *objects], check=True)
    link(objects, arguments.library, Path(get_cuda_path()))
    size = arguments.library.stat().st_size >> 20
    print(f"{arguments.library}: {size} MiB in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
