#include "simd_neon.hpp"

#include <cmath>

#include "kernels_impl.hpp"

namespace pilotfish {
extern const Kernels kernels_neon;
const Kernels kernels_neon = kKernels;
}  // namespace pilotfish
