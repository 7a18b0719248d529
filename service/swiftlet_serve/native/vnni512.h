// Vectors of sixteen floats, and dot products of four bytes that add in 32 bits: the part that the instruction sets with
// AVX-512 and VNNI share.

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
    static constexpr int floats_per_lane = 1;
    static constexpr int rows_at_once = 1;
    static constexpr bool stores_four = true;

    using Floats = __m512;
    using Accumulators = __m512i;
    using Quantised = std::uint8_t;

    // Keeps the order of a tile's products: otherwise gcc 12 runs out of registers.
    template <class Vector>
    static Vector in_order(Vector sum) {
#ifdef __AVX512F__  // not defined when the tests emulate the instructions
        asm volatile("" : "+v"(sum));
#endif
        return sum;
    }
    static Floats zero() { return _mm512_setzero_ps(); }
    static Floats broadcast(float x) { return _mm512_set1_ps(x); }
    static Floats load(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
    static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
    static Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
    static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
    static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
    static Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
    static Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
    static Floats round(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static Floats multiply_by_power(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }
    static Floats keep_first(Floats x, int n) {
        return _mm512_maskz_mov_ps(static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1), x);
    }
    // a0 b0 a1 b1 ... of the lower halves, and of the upper halves
    static Floats interleave_low(Floats a, Floats b) {
        return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), b);
    }
    static Floats interleave_high(Floats a, Floats b) {
        return _mm512_permutex2var_ps(a, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), b);
    }
    // the lower (0) or the upper (1) bf16 number of each lane
    template <int which>
    static Floats half(Floats pairs) {
        const __m512i bits = _mm512_castps_si512(pairs);
        return _mm512_castsi512_ps(which ? _mm512_and_si512(bits, _mm512_set1_epi32(-65536)) : _mm512_slli_epi32(bits, 16));
    }
    static float sum_lanes(Floats x) { return _mm512_reduce_add_ps(x); }
    static float max_lane(Floats x) { return _mm512_reduce_max_ps(x); }
    static void store_quantised(Quantised* p, Floats x) {
        __m512i whole = _mm512_max_epi32(_mm512_cvtps_epi32(x), _mm512_setzero_si512());
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtusepi32_epi8(whole));
    }

    static void store_quantised(Quantised* p, Floats a, Floats b, Floats c, Floats d) {
        const __m512i low = _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
        const __m512i high = _mm512_packs_epi32(_mm512_cvtps_epi32(c), _mm512_cvtps_epi32(d));
        // Each 128 bits now hold four numbers of each vector.
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high)));
    }

    static Accumulators zero_accumulators() { return _mm512_setzero_si512(); }
    static Accumulators broadcast_group(const Quantised* p) {
        int word;
        __builtin_memcpy(&word, p, 4);
        return _mm512_set1_epi32(word);
    }
    static Accumulators load_weights(const std::int8_t* p) { return _mm512_load_si512(p); }
    static Accumulators dot(Accumulators sum, Accumulators activations, Accumulators weights) {
        return in_order(_mm512_dpbusd_epi32(sum, activations, weights));
    }
    static Accumulators load_sums(const std::int32_t* p) { return _mm512_load_si512(p); }
    static Floats to_floats(Accumulators x) { return _mm512_cvtepi32_ps(x); }
};

}  // namespace
