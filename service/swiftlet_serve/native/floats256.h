// Vectors of eight floats: the part that the instruction sets with AVX2 and FMA, and no wider registers, share.

#pragma once

#include <immintrin.h>

namespace {

struct Floats256 {
    static constexpr int lanes = 8;            // floats and 32-bit accumulators of a vector
    static constexpr int floats_per_lane = 1;  // numbers that a lane holds in attention: 1 in fp32, 2 in bf16
    static constexpr bool stores_four = false;  // whether store_quantised takes four vectors, too
    static constexpr int rows_at_once = 1;

    using Floats = __m256;
    using Accumulators = __m256i;

    static Accumulators zero_accumulators() { return _mm256_setzero_si256(); }
    static Floats to_floats(Accumulators x) { return _mm256_cvtepi32_ps(x); }
    static Accumulators broadcast_group(const void* p) {  // the same group in every lane
        int word;
        __builtin_memcpy(&word, p, 4);
        return _mm256_set1_epi32(word);
    }

    // Keeps the order of a tile's products: otherwise gcc 12 runs out of registers.
    template <class Vector>
    static Vector in_order(Vector sum) {
#ifdef __AVX2__  // not defined when the tests emulate the instructions
        asm volatile("" : "+x"(sum));
#endif
        return sum;
    }
    static Floats zero() { return _mm256_setzero_ps(); }
    static Floats broadcast(float x) { return _mm256_set1_ps(x); }
    static Floats load(const float* p) { return _mm256_loadu_ps(p); }
    static void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
    static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
    static Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
    static Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
    static Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
    static Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }  // a * b + c
    static Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
    static Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
    static Floats round(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    // x * 2^n, for whole n from -126 to 127
    static Floats multiply_by_power(Floats x, Floats n) {
        __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        return mul(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
    }
    // sets the lanes from n on to 0
    static Floats keep_first(Floats x, int n) {
        __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane)));
    }
    static __m128i rounded(Floats x) {  // to 16-bit numbers
        __m256i whole = _mm256_cvtps_epi32(x);
        return _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    }
    // a0 b0 a1 b1 ... of the lower halves, and of the upper halves
    static Floats interleave_low(Floats a, Floats b) { return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20); }
    static Floats interleave_high(Floats a, Floats b) { return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31); }
    // the lower (0) or the upper (1) bf16 number of each lane
    template <int which>
    static Floats half(Floats pairs) {
        const __m256i bits = _mm256_castps_si256(pairs);
        return _mm256_castsi256_ps(which ? _mm256_and_si256(bits, _mm256_set1_epi32(-65536)) : _mm256_slli_epi32(bits, 16));
    }
    static float sum_lanes(Floats x) {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
    }
    static float max_lane(Floats x) {
        __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        s = _mm_max_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
    }
};

}  // namespace
