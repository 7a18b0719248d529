// AVX-512 with VNNI and BF16: attention multiplies pairs of bf16 numbers (16 bits, 8 of them significant).

#pragma once

#include "vnni512.h"

namespace {

struct Bf16 : Vnni512 {
    static constexpr int floats_per_lane = 2;

    // Rounds a and b to bf16, the lower and the upper half of each lane.
    static Floats pair(Floats a, Floats b) {
        alignas(64) static constexpr std::int16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                               8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        const Accumulators halves = (__m512i)_mm512_cvtne2ps_pbh(b, a);
        return _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_load_si512(order), halves));
    }
    // Rounds a and b to bf16: lane i holds the numbers 2 i and 2 i + 1 of a followed by b.
    static Floats pair_neighbours(Floats a, Floats b) { return _mm512_castsi512_ps((__m512i)_mm512_cvtne2ps_pbh(b, a)); }
    // Adds the products of both halves to c.
    static Floats fma_pairs(Floats a, Floats b, Floats c) { return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b); }
};

}  // namespace
