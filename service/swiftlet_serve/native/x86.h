// The instruction sets that the CPU has and whose registers the operating system saves (Intel's manual, volume 1,
// sections 14.3 and 15.2). __builtin_cpu_supports is not used: compiled with zig, it always returns false.

#pragma once

#include <cpuid.h>

namespace x86 {

// Whether the operating system saves all of these parts of the state, which are bits of the register XCR0.
inline bool saved(unsigned parts) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & parts) == parts;
}

struct Features {
    unsigned basic = 0;       // leaf 1, ecx
    unsigned b7 = 0, c7 = 0;  // leaf 7, ebx and ecx
    unsigned d7 = 0;          // leaf 7, edx
    unsigned a71 = 0;         // leaf 7.1, eax
    Features() {
        unsigned a, b, c, d;
        __get_cpuid(1, &a, &b, &basic, &d);
        __get_cpuid_count(7, 0, &a, &b7, &c7, &d7);
        __get_cpuid_count(7, 1, &a71, &b, &c, &d);
    }
};

inline bool avx2() {
    const Features has;
    const unsigned basic = bit_OSXSAVE | bit_AVX | bit_FMA;
    return (has.basic & basic) == basic && saved(0x06) && (has.b7 & bit_AVX2);
}

inline bool avxvnni() { return avx2() && (Features().a71 & 1u << 4); }

inline bool avx512vnni() {
    const Features has;
    const unsigned wide = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
    return avx2() && saved(0xe6) && (has.b7 & wide) == wide && (has.c7 & bit_AVX512VNNI);
}

inline bool avx512bf16() { return avx512vnni() && (Features().a71 & 1u << 5); }

// AMX with products of int8 and of bf16, and the state of tiles (bits 17 and 18 of XCR0).
inline bool amx() {
    constexpr unsigned bf16 = 1u << 22, tile = 1u << 24, int8 = 1u << 25, wanted = bf16 | tile | int8;
    return avx512bf16() && saved(0x60000) && (Features().d7 & wanted) == wanted;
}

}  // namespace x86
