"""The native engine's kernels: one library for each instruction set of the platform that Swiftlet is installed on.

Everything else about the package is in pyproject.toml. What cannot be compiled is left out, and done without.
"""

import sysconfig

from setuptools import Extension, setup

FLAGS = ["-std=c++17", "-O3", "-g0", "-ffp-contract=off", "-fvisibility=hidden"]
AVX2 = ["-mavx2", "-mfma"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"]
X86_64 = {
    "avx2": AVX2,
    "avxvnni": [*AVX2, "-mavxvnni"],
    "avx512vnni": [*AVX512, "-mavx512vnni", "-w"],
}
KERNELS = {
    "x86_64": X86_64,
    "amd64": X86_64,  # on Windows
    "aarch64": {"neon": ["-march=armv8.2-a+dotprod"]},
}


def extension(kernel: str, flags: list[str]) -> Extension:
    headers = [f"service/native/{name}.h" for name in ("api", "floats256", "kernels", "model")]
    return Extension(
        f"service.native.{kernel}",
        [f"service/native/{kernel}.cpp"],
        depends=headers,
        extra_compile_args=[*FLAGS, *flags],
        optional=True,
    )


_, _, machine = sysconfig.get_platform().rpartition("-")
setup(ext_modules=[extension(*kernel) for kernel in KERNELS.get(machine, {}).items()])
