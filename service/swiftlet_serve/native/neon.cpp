// ARM's NEON with the dot product of ARMv8.2 (`sdot`): four products of signed bytes, added in 32 bits.

#include "arm_features.h"
#include "neon.h"
#include "no_tiles.h"

namespace {

struct Isa : Neon, NoTiles {
    static constexpr const char* name = "neon";
    static constexpr int group = 4;

    static bool supported() { return has_dot_products(); }

    static int8x16_t broadcast_group(const Quantised* p) {
        std::int32_t word;
        __builtin_memcpy(&word, p, 4);
        return vreinterpretq_s8_s32(vdupq_n_s32(word));
    }
    static int8x16_t load_weights(const std::int8_t* p) { return vld1q_s8(p); }
    static Accumulators dot(Accumulators sum, int8x16_t activations, int8x16_t weights) {
        return in_order(vdotq_s32(sum, activations, weights));
    }
};

}  // namespace

#include "api.h"
