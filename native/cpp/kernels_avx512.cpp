#include "simd_avx512.hpp"

#include <cmath>

#include "kernels_impl.hpp"

namespace pilotfish {
extern const Kernels kernels_avx512;
const Kernels kernels_avx512 = kKernels;
}  // namespace pilotfish
