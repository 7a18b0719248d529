// ARM's NEON with the matrix product of ARMv8.6 (`smmla`): two rows of eight signed bytes times two outputs, added in 32
// bits.

#include <cstddef>

#include "arm_features.h"
#include "neon.h"
#include "no_tiles.h"
#include "unroll.h"

namespace {

struct Isa : Neon, NoTiles {
    static constexpr const char* name = "neon_i8mm";
    static constexpr int rows_at_once = 2;
    static constexpr int group = 8;

    static bool supported() { return has_matrix_products(); }

    // Adds the products of two rows and two outputs.
    static Accumulators dot(Accumulators sum, int8x16_t activations, int8x16_t weights) {
        return in_order(vmmlaq_s32(sum, activations, weights));
    }

    // The sums of a tile: R rows times C vectors of outputs. A register holds two rows times two outputs.
    template <int R, int C>
    struct Sums {
        static constexpr int pairs = (R + 1) / 2;
        Accumulators sum[pairs][2 * C];

        ALWAYS_INLINE Sums() {
            unroll<pairs>([&](auto p) { unroll<2 * C>([&](auto c) { sum[p][c] = vdupq_n_s32(0); }); });
        }
        // Adds the products of a group of inputs. The rows of q are `stride` apart. An odd row is its own neighbour.
        ALWAYS_INLINE void add(const Quantised* q, std::size_t stride, const std::int8_t* w) {
            int8x16_t activations[pairs];
            unroll<pairs>([&](auto p) {
                constexpr std::size_t first = 2 * p, second = first + 1 < R ? first + 1 : first;
                activations[p] = vcombine_s8(vld1_s8(q + first * stride), vld1_s8(q + second * stride));
            });
            unroll<2 * C>([&](auto c) {
                const int8x16_t weights = vld1q_s8(w + 16 * c);
                unroll<pairs>([&](auto p) { sum[p][c] = dot(sum[p][c], activations[p], weights); });
            });
        }
        // Returns the sums of a row and of a vector of outputs.
        ALWAYS_INLINE Accumulators get(int row, int c) const {
            const int64x2_t low = vreinterpretq_s64_s32(sum[row / 2][2 * c]), high = vreinterpretq_s64_s32(sum[row / 2][2 * c + 1]);
            return vreinterpretq_s32_s64(row % 2 ? vzip2q_s64(low, high) : vzip1q_s64(low, high));
        }
    };
};

}  // namespace

#include "api.h"
