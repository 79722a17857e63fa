/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of one instruction set; this file is compiled once for each, with RSSM_VARIANT_<ISA> and its flags. */
#include "cpu/vec.h"

#include "cpu/scan.inl.h"

#include "cpu/prefill.inl.h"

#define NEEDS_(isa, needs) enum { needs_of_##isa = (int)(needs) };
#define RSSM_CPU(isa, needs) NEEDS_(isa, needs)
#include "kernels.def"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

extern const rssm_kernels RSSM_NAME(rssm_kernels);
const rssm_kernels RSSM_NAME(rssm_kernels) = {
    .isa = TEXT(RSSM_VARIANT),
    .needs = RSSM_CONCAT3(needs, _of_, RSSM_VARIANT),
    .decode_unit = decode_unit,
    .prefill_unit = prefill_unit,
    .fold_unit = fold_unit,
};
