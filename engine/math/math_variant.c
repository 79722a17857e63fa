/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One instruction set's table of functions. Compiled once per ISA with its flags and RSSM_VARIANT_<ISA>;
 * nothing here may run before dispatch has looked at the machine.
 */
#include "cpu/vec.h"
#include "math/math_ops.h"

#include "math/rows.inl.h"
#include "math/packed.inl.h"
#include "math/matmul.inl.h"
#include "math/attention.inl.h"

const rse_math_ops RSSM_NAME(rse_math_ops) = {
    .matmul = matmul,
    .attend = attend,
    .rope = rope,
    .rms_norm = rms_norm,
    .silu_mul = silu_mul,
    .sigmoid_mul = sigmoid_mul,
    .relu2 = relu2,
    .add = add,
    .round_bf16 = round_bf16,
    .softmax = softmax,
    .clamp = clamp,
    .situ_mul = situ_mul,
    .scale = scale,
    .add_scaled = add_scaled,
    .expand = expand_row,
    .max = row_max,
};
