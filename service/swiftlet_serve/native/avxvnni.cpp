// AVX-VNNI: AVX2 with the dot product of four bytes that adds in 32 bits, for CPUs without AVX-512.

#include <cstdint>

#include "floats256.h"
#include "no_tiles.h"
#include "x86.h"

namespace {

struct Isa : Floats256, NoTiles {
    static constexpr const char* name = "avxvnni";
    static constexpr int tile_rows = 6;
    static constexpr int tile_vectors = 2;
    static constexpr int lowest = 0;
    static constexpr int levels = 255;
    static constexpr int group = 4;

    using Quantised = std::uint8_t;

    static bool supported() { return x86::avxvnni(); }

    static void store_quantised(Quantised* p, Floats x) {
        const __m128i words = rounded(x);
        _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
    }

    static Accumulators load_weights(const std::int8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }
    static Accumulators dot(Accumulators sum, Accumulators activations, Accumulators weights) {
        return in_order(_mm256_dpbusd_avx_epi32(sum, activations, weights));
    }
};

}  // namespace

#include "api.h"
