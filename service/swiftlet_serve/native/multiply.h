// Matrix products, on tiles or on vectors.

#pragma once

#include "tiles.h"

namespace {

// Multiplies rows of x with m, into out (rows, stride). P is the kind of product.
template <template <class> class P, class A = Isa>
void multiply(const typename P<A>::Rows& x, int rows, const Matrix& m, float* out, int stride, const Epilogue& epilogue = {}) {
    if constexpr (A::tiles)
        if (on_tiles && m.row_bytes() % tile_bytes == 0) return multiply_on_tiles<P<A>, A>(x, rows, m, out, stride, epilogue);
    multiply_on_vectors<P<A>>(x, rows, m, out, stride, epilogue);
}

}  // namespace
