#include "simd_avx2.hpp"

#include <cmath>

#include "kernels_impl.hpp"

namespace pilotfish {
extern const Kernels kernels_avx2;
const Kernels kernels_avx2 = kKernels;
}  // namespace pilotfish
