// Intel's intrinsics, emulated by SIMDe. Intrinsics that Debian's version of SIMDe (0.7.4) lacks or rounds differently are
// emulated here. The tests compile with this header in place of the compiler's, so that kernels run on any CPU.

#pragma once

#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512/abs.h>
#include <simde/x86/avx512/add.h>
#include <simde/x86/avx512/and.h>
#include <simde/x86/avx512/div.h>
#include <simde/x86/avx512/dpbusd.h>
#include <simde/x86/avx512/load.h>
#include <simde/x86/avx512/loadu.h>
#include <simde/x86/avx512/max.h>
#include <simde/x86/avx512/min.h>
#include <simde/x86/avx512/mov.h>
#include <simde/x86/avx512/mul.h>
#include <simde/x86/avx512/or.h>
#include <simde/x86/avx512/packs.h>
#include <simde/x86/avx512/packus.h>
#include <simde/x86/avx512/permutex2var.h>
#include <simde/x86/avx512/permutexvar.h>
#include <simde/x86/avx512/roundscale.h>
#include <simde/x86/avx512/scalef.h>
#include <simde/x86/avx512/set1.h>
#include <simde/x86/avx512/setr.h>
#include <simde/x86/avx512/setzero.h>
#include <simde/x86/avx512/storeu.h>
#include <simde/x86/avx512/sub.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

using __mmask16 = simde__mmask16;
#define _MM_FROUND_NO_EXC SIMDE_MM_FROUND_NO_EXC
#undef _mm256_fmadd_ps     // SIMDe rounds twice
#undef _mm512_fmadd_ps
#undef _mm256_load_si256  // SIMDe reads from any address
#undef _mm512_load_si512

namespace emulation {

template <class To, class From, class Op>
To each(From from, Op op) {  // of 16 lanes
    decltype(op(0)) out[16];
    typename std::conditional<std::is_same<From, simde__m512>::value, float, std::int32_t>::type in[16];
    static_assert(sizeof from == sizeof in, "16 lanes of 32 bits");
    std::memcpy(in, &from, sizeof in);
    for (int i = 0; i < 16; i++) out[i] = op(in[i]);
    To to;
    static_assert(sizeof to == sizeof out, "as many lanes");
    std::memcpy(&to, out, sizeof to);
    return to;
}

// The upper half to the lower one, until one lane is left: the order of gcc and clang.
template <class Op>
float reduce(simde__m512 x, Op op) {
    float lanes[16];
    std::memcpy(lanes, &x, sizeof lanes);
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++) lanes[i] = op(lanes[i], lanes[i + half]);
    }
    return lanes[0];
}

// a * b + c, lane by lane.
template <class F>
F fused(F a, F b, F c) {
    constexpr int lanes = sizeof(F) / sizeof(float);
    float x[lanes], y[lanes], z[lanes];
    std::memcpy(x, &a, sizeof x);
    std::memcpy(y, &b, sizeof y);
    std::memcpy(z, &c, sizeof z);
    for (int i = 0; i < lanes; i++) x[i] = std::fma(x[i], y[i], z[i]);
    std::memcpy(&a, x, sizeof x);
    return a;
}

}  // namespace emulation

inline __m256 _mm256_fmadd_ps(__m256 a, __m256 b, __m256 c) { return emulation::fused(a, b, c); }

inline __m256i _mm256_load_si256(const __m256i* p) {
    if (reinterpret_cast<std::uintptr_t>(p) % 32) std::abort();
    return simde_mm256_loadu_si256(p);
}

inline __m256i _mm256_dpbusd_avx_epi32(__m256i sum, __m256i a, __m256i b) {
    return simde_mm256_dpbusd_epi32(sum, a, b);
}

inline __m512i _mm512_load_si512(const void* p) {
    if (reinterpret_cast<std::uintptr_t>(p) % 64) std::abort();
    return simde_mm512_loadu_si512(p);
}

inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) { return emulation::fused(a, b, c); }

inline __m512 _mm512_cvtepi32_ps(__m512i x) {
    return emulation::each<__m512>(x, [](std::int32_t lane) { return static_cast<float>(lane); });
}

inline __m512i _mm512_cvtps_epi32(__m512 x) {
    return emulation::each<__m512i>(x, [](float lane) {
        const bool fits = lane >= -2147483648.0f && lane < 2147483648.0f;
        return fits ? static_cast<std::int32_t>(std::nearbyint(lane)) : INT32_MIN;
    });
}

inline __m128i _mm512_cvtusepi32_epi8(__m512i x) {
    return emulation::each<__m128i>(x, [](std::int32_t lane) {
        return static_cast<std::uint8_t>(std::min<std::uint32_t>(static_cast<std::uint32_t>(lane), 255));
    });
}

inline float _mm512_reduce_add_ps(__m512 x) {
    return emulation::reduce(x, [](float a, float b) { return a + b; });
}

inline float _mm512_reduce_max_ps(__m512 x) {
    return emulation::reduce(x, [](float a, float b) { return std::max(a, b); });
}

// The first argument is the upper half of the result.
inline __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
    float x[32];
    std::memcpy(x, &low, sizeof low);
    std::memcpy(x + 16, &high, sizeof high);
    std::uint16_t out[32];
    for (int i = 0; i < 32; i++) {
        std::uint32_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        out[i] = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    __m512bh to;
    std::memcpy(&to, out, sizeof to);
    return to;
}

// The odd halves first, as the manual says, and each product added without rounding.
inline __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
    std::uint16_t x[32], y[32];
    float z[16];
    std::memcpy(x, &a, sizeof x);
    std::memcpy(y, &b, sizeof y);
    std::memcpy(z, &sum, sizeof z);
    const auto wide = [](std::uint16_t half) {
        const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
        float out;
        std::memcpy(&out, &bits, sizeof out);
        return out;
    };
    for (int i = 0; i < 16; i++) {
        for (int odd : {1, 0}) z[i] = std::fma(wide(x[2 * i + odd]), wide(y[2 * i + odd]), z[i]);
    }
    std::memcpy(&sum, z, sizeof sum);
    return sum;
}
