#include "simd_portable.hpp"

#include <cmath>

#include "kernels_impl.hpp"

namespace pilotfish {
extern const Kernels kernels_portable;
const Kernels kernels_portable = kKernels;
}  // namespace pilotfish
