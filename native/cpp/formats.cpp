#include "formats.hpp"

namespace pilotfish {
namespace {

uint16_t read_u16(const uint8_t* bytes) { return uint16_t(bytes[0] | bytes[1] << 8); }

void take_nibbles(const uint8_t* packed, uint8_t* values) {
  for (int i = 0; i < 16; i++) {
    values[i] = packed[i] & 15;
    values[i + 16] = packed[i] >> 4;
  }
}

void add_fifth_bits(const uint8_t* packed, uint8_t* values) {
  const uint32_t bits = uint32_t(read_u16(packed)) | uint32_t(read_u16(packed + 2)) << 16;
  for (int i = 0; i < 32; i++) values[i] |= uint8_t((bits >> i & 1) << 4);
}

// Eight 6-bit scales and eight 6-bit mins in 12 bytes.
void take_scales(const uint8_t* packed, BlockParts& parts) {
  for (int i = 0; i < 4; i++) {
    parts.scales[i] = int8_t(packed[i] & 63);
    parts.mins[i] = packed[i + 4] & 63;
    parts.scales[i + 4] = int8_t((packed[i + 8] & 15) | packed[i] >> 6 << 4);
    parts.mins[i + 4] = uint8_t(packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4);
  }
}

void take_q4_k(const uint8_t* block, BlockParts& parts) {
  parts.d = read_u16(block);
  parts.m = read_u16(block + 2);
  take_scales(block + 4, parts);
  const uint8_t* packed = block + 16;
  for (int part = 0; part < 4; part++) {
    for (int i = 0; i < 32; i++) {
      parts.values[64 * part + i] = packed[32 * part + i] & 15;
      parts.values[64 * part + 32 + i] = packed[32 * part + i] >> 4;
    }
  }
}

void take_q5_k(const uint8_t* block, BlockParts& parts) {
  parts.d = read_u16(block);
  parts.m = read_u16(block + 2);
  take_scales(block + 4, parts);
  const uint8_t *high = block + 16, *packed = block + 48;
  for (int part = 0; part < 4; part++) {
    for (int i = 0; i < 32; i++) {
      const uint8_t byte = packed[32 * part + i];
      parts.values[64 * part + i] = uint8_t((byte & 15) | (high[i] >> (2 * part) & 1) << 4);
      parts.values[64 * part + 32 + i] =
          uint8_t(byte >> 4 | (high[i] >> (2 * part + 1) & 1) << 4);
    }
  }
}

void take_q6_k(const uint8_t* block, BlockParts& parts) {
  const uint8_t *low = block, *high = block + 128;
  std::memcpy(parts.scales, block + 192, 16);
  parts.d = read_u16(block + 208);
  for (int half = 0; half < 2; half++, low += 64, high += 32) {
    uint8_t* values = parts.values + 128 * half;
    for (int i = 0; i < 32; i++) {
      values[i] = uint8_t((low[i] & 15) | (high[i] & 3) << 4);
      values[i + 32] = uint8_t((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4);
      values[i + 64] = uint8_t(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
      values[i + 96] = uint8_t(low[i + 32] >> 4 | (high[i] >> 6 & 3) << 4);
    }
  }
}

void dequantize_block(Format format, const uint8_t* block, float* out) {
  BlockParts parts;
  take_apart(format, block, parts);
  const float d = float_from_half(parts.d), m = float_from_half(parts.m);
  switch (format) {
    case Format::q4_k:
    case Format::q5_k:
      for (int i = 0; i < kLargeBlock; i++) {
        const float scale = d * float(parts.scales[i / 32]), min = m * float(parts.mins[i / 32]);
        out[i] = scale * float(parts.values[i]) - min;
      }
      return;
    case Format::q6_k:
      for (int i = 0; i < kLargeBlock; i++) {
        out[i] = d * float(parts.scales[i / 16]) * float(parts.values[i] - 32);
      }
      return;
    case Format::q4_1:
    case Format::q5_1:
      for (int i = 0; i < kSmallBlock; i++) out[i] = d * float(parts.values[i]) + m;
      return;
    default: {
      const int offset = format == Format::q4_0 ? 8 : format == Format::q5_0 ? 16 : 128;
      for (int i = 0; i < kSmallBlock; i++) out[i] = d * float(parts.values[i] - offset);
    }
  }
}

}  // namespace

void take_apart(Format format, const uint8_t* block, BlockParts& parts) {
  switch (format) {
    case Format::q4_k: return take_q4_k(block, parts);
    case Format::q5_k: return take_q5_k(block, parts);
    case Format::q6_k:
      parts.m = 0;
      return take_q6_k(block, parts);
    case Format::q4_0:
      parts.m = 0;
      take_nibbles(block + 2, parts.values);
      break;
    case Format::q4_1:
      parts.m = read_u16(block + 2);
      take_nibbles(block + 4, parts.values);
      break;
    case Format::q5_0:
      parts.m = 0;
      take_nibbles(block + 6, parts.values);
      add_fifth_bits(block + 2, parts.values);
      break;
    case Format::q5_1:
      parts.m = read_u16(block + 2);
      take_nibbles(block + 8, parts.values);
      add_fifth_bits(block + 4, parts.values);
      break;
    case Format::q8_0:
      parts.m = 0;
      for (int i = 0; i < kSmallBlock; i++) parts.values[i] = block[2 + i] ^ 0x80;
      break;
    default:
      return;
  }
  parts.d = read_u16(block);
}

void dequantize(Format format, const uint8_t* row, size_t count, float* out) {
  if (format == Format::f32) {
    std::memcpy(out, row, 4 * count);
  } else if (format == Format::f16) {
    for (size_t i = 0; i < count; i++) out[i] = float_from_half(read_u16(row + 2 * i));
  } else if (format == Format::bf16) {
    for (size_t i = 0; i < count; i++) out[i] = float_from_bfloat(read_u16(row + 2 * i));
  } else {
    const BlockShape shape = block_shape(format);
    for (size_t i = 0; i < count; i += size_t(shape.weights), row += shape.bytes) {
      dequantize_block(format, row, out + i);
    }
  }
}

}  // namespace pilotfish
