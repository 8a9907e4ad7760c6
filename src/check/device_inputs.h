// SPDX-License-Identifier: Apache-2.0
//
// Inputs made by a device for the host: the bytes of fill(), some hundred times as fast where there are many.
#ifndef BATCHPROOF_SRC_CHECK_DEVICE_INPUTS_H_
#define BATCHPROOF_SRC_CHECK_DEVICE_INPUTS_H_

#include <cstdint>

#include "src/numeric/recipe.h"
#include "src/runtime/device.h"

namespace batchproof {

// Elements from which the way over a device is the shorter one: a launch and a copy take as long as the host takes for
// about 1000.
constexpr std::int64_t kDeviceInputs = 2048;

// `request` for `rows` row identities from request.row on, one behind the other in host memory. False: the host has to
// make them. Nothing is written for pairs, captured tensors, packed elements in odd numbers, few elements, and a device
// that runs no kernels; nothing is made any more once the device was out of memory or made another row than the host.
bool fill_on_device(Device* device, const FillRequest& request, std::int64_t rows, void* out);

// By the device where it does, else by the host.
void make_inputs(Device* device, FillRequest request, std::int64_t rows, void* out);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_DEVICE_INPUTS_H_
