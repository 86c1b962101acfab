#include "matrix.hpp"

#include <sys/mman.h>

#include <new>
#include <vector>

namespace pilotfish {
namespace {

constexpr size_t kHugePage = size_t(2) << 20;

uint32_t word(const uint8_t* values) {
  uint32_t four;
  std::memcpy(&four, values, 4);
  return four;
}

void put_half(uint8_t* base, size_t lane, uint16_t value) {
  std::memcpy(base + 2 * lane, &value, 2);
}

void put_word(uint8_t* vector, size_t lane, uint32_t value) {
  std::memcpy(vector + 4 * lane, &value, 4);
}

// Spreads 32 values of one row over the four nibble vectors.
void put_nibbles(uint8_t* vectors, size_t lanes, size_t lane, const uint8_t* values) {
  for (size_t j = 0; j < 4; j++) {
    const uint32_t low = word(values + 8 * j) & 0x0f0f0f0f;
    const uint32_t high = word(values + 8 * j + 4) & 0x0f0f0f0f;
    put_word(vectors + 4 * lanes * j, lane, low | high << 4);
  }
}

void put_fifth_bits(uint8_t* vector, size_t lane, const uint8_t* values) {
  uint32_t bits = 0;
  for (int g = 0; g < 8; g++) bits |= (word(values + 4 * g) >> 4 & 0x01010101) << g;
  put_word(vector, lane, bits);
}

void put_pairs(uint8_t* vectors, size_t lanes, size_t lane, const uint8_t* values) {
  for (size_t p = 0; p < 2; p++) {
    uint32_t bits = 0;
    for (int g = 0; g < 4; g++) {
      bits |= (word(values + 16 * p + 4 * size_t(g)) >> 4 & 0x03030303) << (2 * g);
    }
    put_word(vectors + 4 * lanes * p, lane, bits);
  }
}

void pack_large(Format format, uint8_t* unit, size_t lanes, size_t lane, const BlockParts& parts) {
  put_half(unit, lane, parts.d);
  uint8_t* cursor = unit + 2 * lanes;
  if (format == Format::q6_k) {
    for (size_t s = 0; s < 16; s++) cursor[s * lanes + lane] = uint8_t(parts.scales[s]);
    cursor += 18 * lanes;
  } else {
    put_half(cursor, lane, parts.m);
    cursor += 2 * lanes;
    for (size_t s = 0; s < 8; s++) {
      cursor[s * lanes + lane] = uint8_t(parts.scales[s]);
      cursor[(8 + s / 4 * 4) * lanes + 4 * lane + s % 4] = parts.mins[s];
    }
    cursor += 16 * lanes;
  }
  for (int s = 0; s < 8; s++) {
    const uint8_t* values = parts.values + 32 * s;
    put_nibbles(cursor, lanes, lane, values);
    cursor += 16 * lanes;
    if (format == Format::q5_k) {
      put_fifth_bits(cursor, lane, values);
      cursor += 4 * lanes;
    } else if (format == Format::q6_k) {
      put_pairs(cursor, lanes, lane, values);
      cursor += 8 * lanes;
    }
  }
}

// Packs one of the two blocks of a unit.
void pack_small(Format format, uint8_t* unit, size_t lanes, size_t lane, size_t which,
                const BlockParts& parts) {
  const bool has_min = format == Format::q4_1 || format == Format::q5_1;
  const bool has_fifth = format == Format::q5_0 || format == Format::q5_1;
  put_half(unit + 2 * lanes * which, lane, parts.d);
  if (has_min) put_half(unit + 2 * lanes * (2 + which), lane, parts.m);
  const size_t data = lanes * (format == Format::q8_0 ? 32 : has_fifth ? 20 : 16);
  uint8_t* cursor = unit + lanes * (has_min ? 8 : 4) + which * data;
  if (format == Format::q8_0) {
    for (size_t j = 0; j < 8; j++) {
      put_word(cursor + 4 * lanes * j, lane, word(parts.values + 4 * j));
    }
    return;
  }
  put_nibbles(cursor, lanes, lane, parts.values);
  if (has_fifth) put_fifth_bits(cursor + 16 * lanes, lane, parts.values);
}

uint16_t half_at(const uint8_t* base, size_t lane) {
  uint16_t value;
  std::memcpy(&value, base + 2 * lane, 2);
  return value;
}

// Reads 32 values of one row back from nibble vectors.
void take_values(const uint8_t* vectors, size_t lanes, size_t lane, uint8_t* values) {
  for (size_t j = 0; j < 4; j++) {
    const uint32_t both = word(vectors + 4 * (lanes * j + lane));
    const uint32_t low = both & 0x0f0f0f0f, high = both >> 4 & 0x0f0f0f0f;
    std::memcpy(values + 8 * j, &low, 4);
    std::memcpy(values + 8 * j + 4, &high, 4);
  }
}

void add_bits(const uint8_t* vector, size_t lane, uint8_t* values, int num_groups, int bits) {
  const uint32_t all = word(vector + 4 * lane);
  const uint32_t mask = bits == 1 ? 0x01010101 : 0x03030303;
  for (int g = 0; g < num_groups; g++) {
    const uint32_t added = word(values + 4 * g) | (all >> (bits * g) & mask) << 4;
    std::memcpy(values + 4 * g, &added, 4);
  }
}

void large_row(Format format, const uint8_t* unit, size_t lanes, size_t lane, float* out) {
  const bool sixth = format == Format::q6_k;
  const float d = float_from_half(half_at(unit, lane));
  const float m = sixth ? 0 : float_from_half(half_at(unit + 2 * lanes, lane));
  const uint8_t* scales = unit + (sixth ? 2 : 4) * lanes;
  const uint8_t* data = scales + (sixth ? 18 : 16) * lanes;
  const size_t step = lanes * (sixth ? 24 : format == Format::q5_k ? 20 : 16);
  for (size_t s = 0; s < 8; s++, data += step) {
    uint8_t values[32];
    take_values(data, lanes, lane, values);
    if (sixth) {
      add_bits(data + 16 * lanes, lane, values, 4, 2);
      add_bits(data + 20 * lanes, lane, values + 16, 4, 2);
      for (size_t i = 0; i < 32; i++) {
        const float scale = float(int8_t(scales[(2 * s + i / 16) * lanes + lane]));
        out[32 * s + i] = d * scale * float(values[i] - 32);
      }
    } else {
      if (format == Format::q5_k) add_bits(data + 16 * lanes, lane, values, 8, 1);
      const float scale = d * float(scales[s * lanes + lane]);
      const float min = m * float(scales[(8 + s / 4 * 4) * lanes + 4 * lane + s % 4]);
      for (size_t i = 0; i < 32; i++) out[32 * s + i] = scale * float(values[i]) - min;
    }
  }
}

void small_row(Format format, const uint8_t* unit, size_t lanes, size_t lane, float* out) {
  const bool has_min = format == Format::q4_1 || format == Format::q5_1;
  const bool has_fifth = format == Format::q5_0 || format == Format::q5_1;
  const size_t data = lanes * (format == Format::q8_0 ? 32 : has_fifth ? 20 : 16);
  const int offset = has_min ? 0 : format == Format::q4_0 ? 8 : format == Format::q5_0 ? 16 : 128;
  for (size_t which = 0; which < 2; which++) {
    const float d = float_from_half(half_at(unit + 2 * lanes * which, lane));
    const float m = has_min ? float_from_half(half_at(unit + 2 * lanes * (2 + which), lane)) : 0;
    const uint8_t* cursor = unit + lanes * (has_min ? 8 : 4) + which * data;
    uint8_t values[32];
    if (format == Format::q8_0) {
      for (size_t j = 0; j < 8; j++) std::memcpy(values + 4 * j, cursor + 4 * (lanes * j + lane), 4);
    } else {
      take_values(cursor, lanes, lane, values);
      if (has_fifth) add_bits(cursor + 16 * lanes, lane, values, 8, 1);
    }
    for (int i = 0; i < 32; i++) out[32 * which + size_t(i)] = d * float(values[i] - offset) + m;
  }
}

}  // namespace

void FreePages::operator()(uint8_t* pages) const { munmap(pages, bytes); }

PageMemory allocate_pages(size_t bytes) {
  bytes = round_up(bytes + 1, kHugePage);
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (bytes > kHugePage) madvise(pages, bytes, MADV_HUGEPAGE);
#endif
  return PageMemory(static_cast<uint8_t*>(pages), FreePages{bytes});
}

Matrix::Matrix(Format format, size_t rows, size_t columns, size_t lanes)
    : format_(format), rows_(rows), columns_(columns), lanes_(lanes) {
  units_ = round_up(columns, unit_columns(format)) / unit_columns(format);
}

void Matrix::pack_group(size_t index, Format source, const uint8_t* const* rows,
                        void (*round)(const float* weights, BlockParts& parts)) {
  uint8_t* base = memory_ + index * group_bytes();
  const size_t unit_size = unit_bytes(format_, lanes_);
  const BlockShape shape = block_shape(source);
  std::vector<float> floats;
  for (size_t lane = 0; lane < lanes_; lane++) {
    const uint8_t* row = rows[lane];
    if (row == nullptr) continue;  // memory is zero, and so are its weights
    if (input_of(format_) == Input::plain) {
      const size_t width = size_t(shape.bytes);
      for (size_t k = 0; k < columns_; k++) {
        std::memcpy(base + (k * lanes_ + lane) * width, row + k * width, width);
      }
      continue;
    }
    BlockParts parts;
    if (input_of(format_) == Input::large) {
      for (size_t unit = 0; unit < units_; unit++, row += shape.bytes) {
        take_apart(source, row, parts);
        pack_large(format_, base + unit * unit_size, lanes_, lane, parts);
      }
      continue;
    }
    if (source != format_) {
      floats.resize(columns_);
      dequantize(source, row, columns_, floats.data());
    }
    for (size_t block = 0; block < columns_ / kSmallBlock; block++, row += shape.bytes) {
      if (source == format_) {
        take_apart(source, row, parts);
      } else {
        round(floats.data() + kSmallBlock * block, parts);
      }
      pack_small(format_, base + block / 2 * unit_size, lanes_, lane, block % 2, parts);
    }
  }
}

void Matrix::row(size_t index, float* out) const {
  const uint8_t* base = group(index / lanes_);
  const size_t lane = index % lanes_, unit_size = unit_bytes(format_, lanes_);
  const size_t width = unit_columns(format_);
  float unit_out[kLargeBlock];
  for (size_t unit = 0; unit < units_; unit++, base += unit_size) {
    if (input_of(format_) == Input::plain) {
      const size_t size = size_t(block_shape(format_).bytes);
      dequantize(format_, base + lane * size, 1, out + unit);
      continue;
    }
    if (input_of(format_) == Input::large) {
      large_row(format_, base, lanes_, lane, unit_out);
    } else {
      small_row(format_, base, lanes_, lane, unit_out);
    }
    const size_t begin = unit * width;
    const size_t count = columns_ - begin < width ? columns_ - begin : width;
    std::memcpy(out + begin, unit_out, 4 * count);
  }
}

}  // namespace pilotfish
