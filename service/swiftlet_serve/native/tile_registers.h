// The eight tiles of AMX: registers of 16 rows times 64 bytes.

#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "x86.h"

namespace {

struct TileRegisters {
    static constexpr bool tiles = true;

    // Linux saves tiles only for processes that ask for it (its documentation: arch/x86/xstate). It refuses if the signal
    // stack of a thread is too small for them, and a container's filter of system calls may refuse, too.
    static bool permitted() {
        constexpr int request_permission = 0x1023, tile_data = 18;
        return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    }

    // Tiles belong to a thread. While they are in use, Linux saves 8 KiB more when it switches threads.
    struct InUse {
        InUse() {
            struct alignas(64) Configuration {
                std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
                std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
                std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
            };
            static const Configuration configuration;
            asm volatile("ldtilecfg %0" : : "m"(configuration));
        }
        ~InUse() { asm volatile("tilerelease"); }
    };

    // gcc's intrinsics take literals only.
    template <int t> static void tile_zero() { asm volatile("tilezero %%tmm%c0" : : "i"(t)); }
    template <int t> static void tile_load(const void* p, long stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(t) : "memory");
    }
    // The same, without a place in the first-level cache: for weights, so that activations stay there.
    template <int t> static void tile_stream(const void* p, long stride) {
        asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(t) : "memory");
    }
    template <int t> static void tile_store(void* p, long stride) {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(t) : "memory");
    }
    // sum += a times b: unsigned times signed bytes in 32-bit integers, and pairs of bf16 in fp32
    template <int sum, int a, int b> static void tile_dot() {
        asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sum), "i"(a), "i"(b));
    }
    template <int sum, int a, int b> static void tile_dot_bf16() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sum), "i"(a), "i"(b));
    }
};

}  // namespace
