#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/numeric/ml_dtypes_tables.h from the PyPI package ml_dtypes, the independent source of ml_dtypes_test.

usage: pip install ml_dtypes numpy; ml_dtypes_tables.py > src/numeric/ml_dtypes_tables.h
"""
import ml_dtypes
import numpy as np

FORMATS = [("E4m3", ml_dtypes.float8_e4m3fn, 256), ("E5m2", ml_dtypes.float8_e5m2, 256),
           ("E8m0", ml_dtypes.float8_e8m0fnu, 256), ("E2m1", ml_dtypes.float4_e2m1fn, 16)]


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def decoded(dtype, codes):
    values = np.arange(codes, dtype=np.uint8).view(dtype).astype(np.float32)
    bits = values.view(np.uint32)
    return np.where(np.isnan(values), np.uint32(0x7FC00000), bits)


def encoded(dtype, codes):
    """Codes of every FP32 whose low 16 bits are zero or one bit above a tie, within the finite range of the format."""
    largest = float(np.max([v for v in np.arange(codes, dtype=np.uint8).view(dtype).astype(np.float32)
                            if np.isfinite(v)]))
    high = np.arange(65536, dtype=np.uint32) << 16
    out = bytearray()
    for low in (0, 1):
        values = (high | np.uint32(low)).view(np.float32)
        for value in values:
            if np.isnan(value) or abs(float(value)) > largest:
                continue
            if dtype is ml_dtypes.float8_e8m0fnu:
                # Below, ml_dtypes 0.6.0 rounds subnormal FP32 up whatever is nearer; it rounds every tie up.
                tie = int(value.view(np.uint32)) & 0x7FFFFF == 0x400000
                if tie or not float(value) >= 2.0**-126:
                    continue
            out.append(int(np.array([value], dtype=np.float32).astype(dtype).view(np.uint8)[0]))
    return out


def main():
    print("// SPDX-License-Identifier: Apache-2.0")
    print("//")
    print(f"// Written by tests/generate/ml_dtypes_tables.py with ml_dtypes {ml_dtypes.__version__}.")
    print("#ifndef BATCHPROOF_SRC_NUMERIC_ML_DTYPES_TABLES_H_")
    print("#define BATCHPROOF_SRC_NUMERIC_ML_DTYPES_TABLES_H_")
    print()
    print("#include <cstddef>\n#include <cstdint>\n")
    print("namespace batchproof::ml_dtypes_tables {\n")
    for name, dtype, codes in FORMATS:
        bits = decoded(dtype, codes)
        print(f"// FP32 bits of every code; NaN as 0x7FC00000.")
        print(f"constexpr std::uint32_t k{name}[{codes}] = {{")
        for row in range(0, codes, 8):
            print("    " + ", ".join(f"0x{int(b):08X}" for b in bits[row:row + 8]) + ",")
        print("};")
        data = encoded(dtype, codes)
        print(f"constexpr std::size_t k{name}Encoded = {len(data)};")
        print(f"constexpr std::uint64_t k{name}Fnv = 0x{fnv(data):016X};\n")
    print("}  // namespace batchproof::ml_dtypes_tables\n")
    print("#endif  // BATCHPROOF_SRC_NUMERIC_ML_DTYPES_TABLES_H_")


if __name__ == "__main__":
    main()
