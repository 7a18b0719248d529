// Sixteen numbers in a register, and dot products of four bytes that add in 32 bits: what AVX-512 with VNNI shares.

#pragma once

#include <immintrin.h>

#include <cstdint>

#include "x86.h"

namespace {

struct Vnni512 {
    static constexpr int lanes = 16;
    static constexpr int tile_rows = 6;
    static constexpr int tile_vectors = 4;
    static constexpr int lowest = 0;
    static constexpr int levels = 255;
    static constexpr int group = 4;
    static constexpr int paired = 1;

    using F = __m512;
    using I = __m512i;
    using Q = std::uint8_t;

    static F zero() { return _mm512_setzero_ps(); }
    static F all(float x) { return _mm512_set1_ps(x); }
    static F load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F div(F a, F b) { return _mm512_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F min(F a, F b) { return _mm512_min_ps(a, b); }
    static F max(F a, F b) { return _mm512_max_ps(a, b); }
    static F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static F magnitude(F x) { return _mm512_abs_ps(x); }
    static F with_sign(F x, F sign) { return _mm512_or_ps(x, _mm512_and_ps(all(-0.0f), sign)); }
    static F scale(F x, F n) { return _mm512_scalef_ps(x, n); }
    static F first(F x, int n) {
        return _mm512_maskz_mov_ps(static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1), x);
    }
    // a0 b0 a1 b1 ... of the first halves, and of the second ones
    static F zip_low(F a, F b) {
        return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), b);
    }
    static F zip_high(F a, F b) {
        return _mm512_permutex2var_ps(a, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), b);
    }
    static float sum(F x) { return _mm512_reduce_add_ps(x); }
    static float largest(F x) { return _mm512_reduce_max_ps(x); }
    static void store_rounded(Q* p, F x) {
        __m512i whole = _mm512_max_epi32(_mm512_cvtps_epi32(x), _mm512_setzero_si512());
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtusepi32_epi8(whole));
    }

    static I none() { return _mm512_setzero_si512(); }
    static I activations(const Q* p) {
        int word;
        __builtin_memcpy(&word, p, 4);
        return _mm512_set1_epi32(word);
    }
    static I weights(const std::int8_t* p) { return _mm512_load_si512(p); }
    static I dot(I sum, I activations, I weights) {
        sum = _mm512_dpbusd_epi32(sum, activations, weights);
#ifdef __AVX512F__  // the tests emulate it where it is not
        asm volatile("" : "+v"(sum));  // keeps the order of a tile's products, and gcc 12 from running out of registers
#endif
        return sum;
    }
    static F to_float(I x) { return _mm512_cvtepi32_ps(x); }
};

}  // namespace
